"""Queries normed and rotated in Triton, read and written once."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow
from jit_kernels.rms_norm.triton_backend import as_rows, load_normed, warps
from jit_kernels.rope.triton_backend import rotate

_ELEMENTS = 2048


@triton.jit(do_not_specialize=["rows"])
def _kernel(
    q_ptr: tl.tensor, stride: tl.tensor, rotation_ptr: tl.tensor, out_ptr: tl.tensor,
    rows: tl.tensor, heads: tl.tensor, width: tl.tensor, channels: tl.tensor, eps: tl.tensor,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    x = load_normed(q_ptr, stride, q_ptr, row, column, rows, width, eps, False)
    x = narrow(x, out_ptr.dtype.element_ty).to(tl.float32)
    x = rotate(
        x, rotation_ptr, row // heads, row < rows, width - channels, channels, False, ROWS, WIDTH
    )
    at = out_ptr + row.to(tl.int64)[:, None] * width + column[None, :]
    mask = (row < rows)[:, None] & (column < width)[None, :]
    tl.store(at, narrow(x, out_ptr.dtype.element_ty), mask=mask)


def q_norm_rope(
    q: torch.Tensor, rotation: torch.Tensor, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Norm and rotate; see `jit_kernels.q_norm_rope.q_norm_rope`."""
    out = torch.empty(q.shape, dtype=out_dtype, device=q.device)
    if not out.numel():
        return out
    rows = as_rows(q)
    count, width = rows.shape
    block = max(2, triton.next_power_of_2(width))
    group = max(1, _ELEMENTS // block)
    _kernel[(triton.cdiv(count, group),)](
        rows,
        rows.stride(0),
        rotation.contiguous(),
        out,
        count,
        q.shape[1],
        width,
        rotation.shape[2],
        eps,
        ROWS=group,
        WIDTH=block,
        num_warps=warps(group * block),
    )
    return out
