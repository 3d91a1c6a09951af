"""Names and shapes of the tensors that a checkpoint of a configuration has."""

import torch

from layers.models.deepseek_v4.config import ModelConfig
from layers.models.deepseek_v4.model import ReferenceV4


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the dense shape of every tensor by its published name, draft heads excluded.

    They are the network's own; nothing is allocated.
    """
    network = ReferenceV4(config, torch.device("meta"), torch.float32)
    return {name: tuple(view.shape) for name, view in network.named_weights()}
