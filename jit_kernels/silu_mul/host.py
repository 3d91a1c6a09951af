"""Clamped SwiGLU in C."""

import torch

from jit_kernels.host import function, rows_of

_silu_mul = function("silu_mul", "pifpii")


def silu_mul(gate_up: torch.Tensor, limit: float, out_dtype: torch.dtype) -> torch.Tensor:
    """Gate and multiply; see `jit_kernels.silu_mul.silu_mul`."""
    gate_up = rows_of(gate_up)
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, inner), dtype=torch.float32)
    _silu_mul(gate_up.data_ptr(), gate_up.stride(0), limit, out.data_ptr(), rows, inner)
    return out.to(out_dtype)
