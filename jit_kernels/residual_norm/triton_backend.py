"""Sum and norm in Triton: a program has a row."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow
from jit_kernels.device_order import await_kernels, early
from jit_kernels.triton_launch import prepared

_WIDE = 2048


@prepared
@triton.jit
def _kernel(
    h_ptr: tl.tensor, y_ptr: tl.tensor, weight_ptr: tl.tensor, out_ptr: tl.tensor, eps: tl.tensor,
    ADDS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    await_kernels(EARLY)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    x = tl.load(h_ptr + at, mask=inside, other=0.0)
    if ADDS:
        x += tl.load(y_ptr + at, mask=inside, other=0.0)
        tl.store(h_ptr + at, x, mask=inside)
    factor = tl.rsqrt(tl.sum(x * x) / WIDTH + eps)
    tl.store(out_ptr + at, narrow(x * factor * weight, out_ptr.dtype.element_ty), mask=inside)


def residual_norm(
    h: torch.Tensor,
    y: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Add and norm; see `jit_kernels.residual_norm.residual_norm`."""
    out = torch.empty(h.shape, dtype=out_dtype, device=h.device)
    if out.numel():
        width = h.shape[1]
        _kernel[(h.shape[0],)](
            *(h, h if y is None else y, weight, out, eps),
            ADDS=y is not None,
            WIDTH=width,
            BLOCK=triton.next_power_of_2(width),
            num_warps=8 if width >= _WIDE else 4,
            **early(),
        )
    return out
