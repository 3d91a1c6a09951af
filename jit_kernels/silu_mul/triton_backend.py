"""Clamped SwiGLU in Triton."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow

_BLOCK = 1024


@triton.jit
def load_gated(
    x_ptr: tl.tensor, stride: tl.tensor, row: tl.tensor, column: tl.tensor, inner: tl.tensor,
    limit: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Return the gated channels of one row in float32, zero past the last."""
    at = x_ptr + row * stride + column
    gate = tl.load(at, mask=column < inner, other=0.0).to(tl.float32)
    up = tl.load(at + inner, mask=column < inner, other=0.0).to(tl.float32)
    # NaN must stay NaN, which minimum and maximum do not promise.
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _silu_kernel(
    x_ptr: tl.tensor, stride: tl.tensor, out_ptr: tl.tensor, inner: tl.tensor, limit: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    result = narrow(load_gated(x_ptr, stride, row, column, inner, limit), out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * inner + column, result, mask=column < inner)


def silu_mul(gate_up: torch.Tensor, limit: float, out_dtype: torch.dtype) -> torch.Tensor:
    """Gate and multiply; see `jit_kernels.silu_mul.silu_mul`."""
    gate_up = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, inner), dtype=out_dtype, device=gate_up.device)
    if not out.numel():
        return out
    block = min(_BLOCK, triton.next_power_of_2(inner))
    _silu_kernel[(rows, triton.cdiv(inner, block))](
        gate_up,
        gate_up.stride(0),
        out,
        inner,
        limit,
        BLOCK=block,
        num_warps=max(1, block // 256),
    )
    return out
