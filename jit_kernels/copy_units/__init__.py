"""Whole units of a pool copied over others, in every layer at once."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select

__all__ = ["copy_units"]

# Bytes that are moved as one number.
WORD = 8

_MODULE = "jit_kernels.copy_units"
_copy_units: Callable[..., None] = select(
    "copy_units",
    [
        Backend("triton", f"{_MODULE}.triton_backend:copy_units", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:copy_units"),
    ],
)


def copy_units(pool: torch.Tensor, pairs: torch.Tensor) -> None:
    """Write unit `pairs[0, i]` of each layer over its unit `pairs[1, i]`, in place.

    pool   [L, U, bytes] uint8, contiguous; bytes a multiple of 8
    pairs  [2, n] int64   no unit is written twice, none is read and written

    Raises ShapeError.
    """
    check_shape("pool", pool, None, None, None)
    check_dtype("pool", pool, torch.uint8)
    check_shape("pairs", pairs, 2, None)
    check_dtype("pairs", pairs, torch.int64)
    if not pool.is_contiguous() or pool.shape[2] % WORD:
        raise ShapeError(f"pool must be contiguous, and its units a multiple of {WORD} bytes")
    _copy_units(pool, pairs)
