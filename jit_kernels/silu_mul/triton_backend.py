"""Clamped SwiGLU in Triton: a program has a stretch of a row."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow
from jit_kernels.device_order import await_kernels, early
from jit_kernels.triton_launch import prepared

_COLUMNS = 1024


@prepared
@triton.jit
def _kernel(
    x_ptr: tl.tensor, stride: tl.tensor, out_ptr: tl.tensor, limit: tl.tensor, inner: tl.tensor,
    COLUMNS: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < inner
    await_kernels(EARLY)
    at = x_ptr + row * stride + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inner, mask=inside, other=0.0).to(tl.float32)
    # Unlike a minimum, a choice leaves NaN as it is.
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    gated = gate / (tl.exp(-gate) + 1.0) * up
    tl.store(out_ptr + row * inner + column, narrow(gated, out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor, limit: float, out_dtype: torch.dtype) -> torch.Tensor:
    """Gate and multiply; see `jit_kernels.silu_mul.silu_mul`."""
    gate_up = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, inner), dtype=out_dtype, device=gate_up.device)
    if out.numel():
        columns = min(_COLUMNS, triton.next_power_of_2(inner))
        _kernel[(rows, triton.cdiv(inner, columns))](
            *(gate_up, gate_up.stride(0), out, limit, inner),
            COLUMNS=columns,
            num_warps=4,
            **early(),
        )
    return out
