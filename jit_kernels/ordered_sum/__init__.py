"""Sums of what several ranks give, in float32 and in their order, so that all get the same bits."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select

__all__ = ["ordered_sum"]

_MODULE = "jit_kernels.ordered_sum"
_ordered_sum: Callable[[torch.Tensor, torch.Tensor], None] = select(
    "ordered_sum",
    [
        Backend("triton", f"{_MODULE}.triton_backend:ordered_sum", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:ordered_sum"),
    ],
)


def ordered_sum(parts: torch.Tensor) -> torch.Tensor:
    """Return the sum of all parts in their dtype, added in float32, the first ones first.

    parts  [W, ...] float32 or bfloat16, contiguous, W at least 1

    Returns [...]. Raises ShapeError.
    """
    if not (parts.dim() and len(parts) and parts.is_contiguous()):
        raise ShapeError(f"parts must be contiguous, and one at least: {tuple(parts.shape)}")
    if parts.dtype not in (torch.float32, torch.bfloat16):
        raise ShapeError(f"parts must be float32 or bfloat16, not {parts.dtype}")
    out = torch.empty_like(parts[0])
    _ordered_sum(parts, out)
    return out
