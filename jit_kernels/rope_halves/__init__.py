"""Rotary position embedding of whole heads: channel i turns with channel i + D / 2."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["rope_halves"]

_rope_halves: Callable[..., torch.Tensor] = select(
    "rope_halves",
    [
        on_host("rope_halves.host:rope_halves"),
        Backend("reference", "jit_kernels.rope_halves.reference:rope_halves"),
    ],
)


def rope_halves(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotate the heads of `x` in place and return it.

    x         [T, H, D] float32; mutated; a token's heads lie one after another, tokens may lie
              apart; D is even
    rotation  [T, 2, D / 2] float32, contiguous   cosines, then sines:
              out[i] = x[i] cos - x[i + D / 2] sin, out[i + D / 2] = x[i + D / 2] cos + x[i] sin

    Raises ShapeError.
    """
    check_shape("x", x, None, None, None)
    check_dtype("x", x, torch.float32)
    tokens, _, width = x.shape
    if width % 2 or x.stride(2) != 1 or x.stride(1) != width:
        raise ShapeError(f"x has heads of {width} channels with strides {x.stride()}")
    check_shape("rotation", rotation, tokens, 2, width // 2)
    check_dense("rotation", rotation, torch.float32)
    return _rope_halves(x, rotation)
