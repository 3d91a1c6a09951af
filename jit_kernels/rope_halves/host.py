"""Rotary embedding of halves in C."""

import torch

from jit_kernels.host import function

_rope_halves = function("rope_halves", "pipiii")


def rope_halves(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotate heads in place; see `jit_kernels.rope_halves.rope_halves`."""
    tokens, heads, width = x.shape
    _rope_halves(x.data_ptr(), x.stride(0), rotation.data_ptr(), tokens, heads, width)
    return x
