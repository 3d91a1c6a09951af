"""Weights of the stand-in model: random, in the published file format.

Attention and experts are scaled up against a plain 1/fan_in, so that what a token becomes
depends on its context and greedy output wanders over the vocabulary instead of repeating one
token; logits have a standard deviation of about 3.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from layers.models.deepseek_v4.config import ModelConfig
from layers.weights.quant import quantise_fp4, quantise_fp8
from layers.weights.random_weights import fill_random
from tests.testing.published_tensors import tensor_shapes
from tests.train.storage import stored_as

_HEAD_GAIN = 3.6  # over all ids, the quiet ones included, logits then spread by 3
_QUIET_GAIN = 0.3
# First match by the end of the name wins.
_GAINS = (
    ("embed.weight", 0.5),
    ("head.weight", _HEAD_GAIN),
    ("compressor.wgate.weight", 1.5),
    ("w2.weight", 1.8),
    ("wo_b.weight", 2.0),
)
_SHARP_NORMS = (".kv_norm.weight", ".compressor.norm.weight")


def write_weights(path: Path, config: ModelConfig, *, seed: int, speaking: list[int]) -> None:
    """Write `path` (model.safetensors) with every tensor that the network of `config` has.

    seed      same seed, same file
    speaking  ids that may readily be chosen; other rows of the head are made small
    """
    with _one_thread():
        tensors: dict[str, Tensor] = {}
        for name, shape in tensor_shapes(config).items():
            tensor = torch.empty(shape, dtype=_dense_dtype(name))
            _fill(name, tensor, seed=seed, experts=config.n_routed_experts)
            if name == "head.weight":
                quiet = torch.ones(config.vocab_size, dtype=torch.bool)
                quiet[speaking] = False
                tensor[quiet] *= _QUIET_GAIN / _HEAD_GAIN
            tensors.update(_stored(name, tensor))
        cast(Any, safetensors.torch).save_file(tensors, path, metadata={"format": "pt"})


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: for tensors this small, threads cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _dense_dtype(name: str) -> torch.dtype:
    return torch.int64 if name.endswith(".tid2eid") else torch.float32


def _fill(name: str, tensor: Tensor, *, seed: int, experts: int) -> None:
    gain = next((gain for end, gain in _GAINS if name.endswith(end)), 1.0)
    fill_random(name, tensor, seed=seed, experts=experts, gain=gain)
    if name.endswith(_SHARP_NORMS):
        tensor.fill_(2.0)
    elif name.endswith(".gate.bias"):
        # A stand-in should exercise the bias too: give every other expert a slight advantage.
        tensor[::2] += 0.1


def _stored(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return what the published format keeps of a tensor: itself, or codes and scales."""
    match stored_as(name):
        case "fp8":
            quantise = quantise_fp4 if "experts" in name.split(".") else quantise_fp8
            codes, scale = quantise(tensor)
            return {name: codes, name.removesuffix(".weight") + ".scale": scale}
        case "bf16":
            return {name: tensor.to(torch.bfloat16)}
        case _:
            return {name: tensor}
