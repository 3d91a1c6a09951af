"""Rotary position embedding of the last channels, interleaved pairs; the rotations of positions."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["rope", "rotations"]

_rope: Callable[..., torch.Tensor] = select(
    "rope",
    [
        on_host("rope.host:rope"),
        Backend("reference", "jit_kernels.rope.reference:rope"),
    ],
)
_rotations: Callable[..., torch.Tensor] = select(
    "rotations",
    [
        Backend("triton", "jit_kernels.rope.triton_backend:rotations", why_no_triton, "cuda"),
        Backend("reference", "jit_kernels.rope.reference:rotations"),
    ],
)


def rope(x: torch.Tensor, rotation: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
    """Rotate the last R channels of `x` in place and return it.

    x         [T, H, C] float32 or bfloat16, contiguous; mutated; C at least R
    rotation  [T, 2, R] float32, contiguous   per channel the cosine of its pair's angle, then the
                                  sine, negative in even ones: out[2i] = x[2i] cos - x[2i+1] sin
    inverse   rotate backwards

    The arithmetic is float32, rounded once. Raises ShapeError.
    """
    check_shape("rotation", rotation, x.shape[0], 2, None)
    check_dense("x", x, torch.float32, torch.bfloat16)
    check_dense("rotation", rotation, torch.float32)
    if rotation.shape[2] > x.shape[2]:
        raise ShapeError(f"of {x.shape[2]} channels {rotation.shape[2]} turn")
    return _rope(x, rotation, inverse)


def rotations(positions: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return what `rope` turns tokens by, [T, 2, R] float32.

    positions  [T] int64
    angles     [R] float32   of each channel for a position, those of a pair alike; R is even

    An angle is the float32 product of both, its cosine and sine are those of float32 numbers. On a
    device `decode_indices` makes them by the same code, so that a token has the same rotation in
    prefill and in decoding. Raises ShapeError.
    """
    check_shape("positions", positions, None)
    check_dtype("positions", positions, torch.int64)
    check_shape("angles", angles, None)
    check_dtype("angles", angles, torch.float32)
    return _rotations(positions, angles)
