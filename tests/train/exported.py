"""A checkpoint in the published format as what a training goes on with."""

from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from layers.weights.quant import dequantise_fp8
from tests.train.run_state import StateError

WEIGHTS = "model.safetensors"
_SCALE, _WEIGHT = ".scale", ".weight"


def is_exported(folder: Path) -> bool:
    """Say whether `folder` is such a checkpoint, and not a run's portable files."""
    return (folder / WEIGHTS).is_file()


def load_exported(folder: Path) -> dict[str, Tensor]:
    """Return the parameters of a checkpoint by published name: float32, routing tables int64.

    What was rounded to be stored stays as it was rounded. Raises StateError.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise StateError(f"there is no {WEIGHTS} in {folder}")
    held = cast(dict[str, Tensor], cast(Any, safetensors.torch).load_file(path))
    parameters: dict[str, Tensor] = {}
    for name, tensor in held.items():
        if name.endswith(_SCALE):
            continue
        scale = held.get(name.removesuffix(_WEIGHT) + _SCALE)
        if scale is not None:
            dense = torch.empty(tensor.shape)
            dequantise_fp8(tensor, scale, dense)
            parameters[name] = dense
        else:
            parameters[name] = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
    return parameters
