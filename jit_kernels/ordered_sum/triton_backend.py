"""Sum of all ranks' numbers in Triton: each number is read once."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow
from jit_kernels.triton_launch import prepared

_BLOCK = 2048


@prepared
@triton.jit
def _kernel(
    parts_ptr: tl.tensor, out_ptr: tl.tensor, count: tl.tensor, WORLD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    total = tl.load(parts_ptr + at, mask=here, other=0.0).to(tl.float32)
    for rank in tl.static_range(1, WORLD):
        total += tl.load(parts_ptr + rank * count + at, mask=here, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, narrow(total, out_ptr.dtype.element_ty), mask=here)


def ordered_sum(parts: torch.Tensor, out: torch.Tensor) -> None:
    """Write the sum; see `jit_kernels.ordered_sum.ordered_sum`."""
    count = out.numel()
    if count:
        _kernel[(triton.cdiv(count, _BLOCK),)](
            parts, out, count, WORLD=len(parts), BLOCK=_BLOCK, num_warps=8
        )
