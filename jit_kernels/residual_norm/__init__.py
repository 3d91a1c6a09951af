"""A block's result added to the stream, and the stream normed for the next block."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_dense, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["residual_norm"]

_MODULE = "jit_kernels.residual_norm"
_residual_norm: Callable[..., torch.Tensor] = select(
    "residual_norm",
    [
        Backend("triton", f"{_MODULE}.triton_backend:residual_norm", why_no_triton, "cuda"),
        on_host("residual_norm.host:residual_norm"),
        Backend("reference", f"{_MODULE}.reference:residual_norm"),
    ],
)


def residual_norm(
    h: torch.Tensor,
    y: torch.Tensor | None,
    weight: torch.Tensor,
    *,
    eps: float,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Add `y` to `h` in place and return `h / sqrt(mean(h^2) + eps) * weight`, rounded once.

    h          [T, C] float32, contiguous; mutated
    y          [T, C] float32, contiguous; None: nothing is added
    weight     [C] float32, contiguous
    out_dtype  float32 or bfloat16

    A row's bits depend on its own numbers alone. Raises ShapeError.
    """
    check_shape("h", h, None, None)
    check_dense("h", h, torch.float32)
    if y is not None:
        check_shape("y", y, *h.shape)
        check_dense("y", y, torch.float32)
    check_shape("weight", weight, h.shape[1])
    check_dense("weight", weight, torch.float32)
    return _residual_norm(h, y, weight, eps, out_dtype)
