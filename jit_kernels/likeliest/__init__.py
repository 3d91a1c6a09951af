"""The likeliest token of each row, and whether its logits are numbers at all, in one reading."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_dense, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select

__all__ = ["NOT_FINITE", "likeliest"]

NOT_FINITE = -1
_MODULE = "jit_kernels.likeliest"
_likeliest: Callable[[torch.Tensor, torch.Tensor], None] = select(
    "likeliest",
    [
        Backend("triton", f"{_MODULE}.triton_backend:likeliest", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:likeliest"),
    ],
)


def likeliest(logits: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the id of the largest logit of each row, ties to the lower id.

    logits  [n, V] float32, V at least 1, its columns adjacent
    out     [n] int64, contiguous, where the ids are to be; None: somewhere new

    Returns [n] int64; NOT_FINITE where any logit of the row is NaN or infinite. Raises ShapeError.
    """
    check_shape("logits", logits, None, None)
    check_dtype("logits", logits, torch.float32)
    if out is None:
        out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    check_shape("out", out, logits.shape[0])
    check_dense("out", out, torch.int64)
    _likeliest(logits, out)
    return out
