"""Clamped SwiGLU."""

from collections.abc import Callable

import torch

from jit_kernels.cuda_device import why_no_triton
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["silu_mul"]

_silu_mul: Callable[..., torch.Tensor] = select(
    "silu_mul",
    [
        Backend("triton", "jit_kernels.silu_mul.triton_backend:silu_mul", why_no_triton, "cuda"),
        on_host("silu_mul.host:silu_mul"),
        Backend("reference", "jit_kernels.silu_mul.reference:silu_mul"),
    ],
)


def silu_mul(
    gate_up: torch.Tensor, *, limit: float, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return `silu(min(gate, limit)) * clamp(up, -limit, limit)`, computed in float32.

    gate_up  [R, 2 I] float32 or bfloat16   gate channels, then up channels

    Returns [R, I] in `out_dtype`, that of `gate_up` by default.
    """
    return _silu_mul(gate_up, limit, out_dtype or gate_up.dtype)
