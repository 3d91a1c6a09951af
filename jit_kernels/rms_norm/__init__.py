"""Root-mean-square normalisation over the last axis."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_dense, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["rms_norm"]

_rms_norm: Callable[..., torch.Tensor] = select(
    "rms_norm",
    [
        Backend("cuda", "jit_kernels.rms_norm.cuda_backend:rms_norm", why_no_hopper, "cuda"),
        on_host("rms_norm.host:rms_norm"),
        Backend("reference", "jit_kernels.rms_norm.reference:rms_norm"),
    ],
)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    *,
    eps: float,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return `x / sqrt(mean(x^2) + eps) * weight`, computed in float32 and cast once.

    x          [..., C] float32 or bfloat16
    weight     [C] float32, contiguous, or None for none
    out_dtype  dtype of the result, that of `x` by default

    Raises ShapeError.
    """
    if weight is not None:
        check_shape("weight", weight, x.shape[-1])
        check_dense("weight", weight, torch.float32)
    return _rms_norm(x, weight, eps, out_dtype or x.dtype)
