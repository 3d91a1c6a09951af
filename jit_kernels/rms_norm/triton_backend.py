"""Root-mean-square normalisation in Triton: a program holds whole rows."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow

# Elements a program takes, as whole rows.
_ELEMENTS = 2048


@triton.jit
def load_normed(
    x_ptr: tl.tensor, stride: tl.tensor, weight_ptr: tl.tensor, row: tl.tensor, column: tl.tensor,
    rows: tl.tensor, width: tl.tensor, eps: tl.tensor, WEIGHTED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return rows [R, C] in float32, normed, times the weight if there is one."""
    mask = (row < rows)[:, None] & (column < width)[None, :]
    at = x_ptr + row.to(tl.int64)[:, None] * stride + column[None, :]
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    x *= tl.rsqrt(tl.sum(x * x, 1) / width + eps)[:, None]
    if WEIGHTED:
        x *= tl.load(weight_ptr + column, mask=column < width, other=0.0)[None, :]
    return x


@triton.jit(do_not_specialize=["rows"])
def _norm_kernel(
    x_ptr: tl.tensor, stride: tl.tensor, weight_ptr: tl.tensor, out_ptr: tl.tensor, rows: tl.tensor,
    width: tl.tensor, eps: tl.tensor, WEIGHTED: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    x = load_normed(x_ptr, stride, weight_ptr, row, column, rows, width, eps, WEIGHTED)
    at = out_ptr + row.to(tl.int64)[:, None] * width + column[None, :]
    mask = (row < rows)[:, None] & (column < width)[None, :]
    tl.store(at, narrow(x, out_ptr.dtype.element_ty), mask=mask)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Normalise the last axis; see `jit_kernels.rms_norm.rms_norm`."""
    out = torch.empty(x.shape, dtype=out_dtype, device=x.device)
    rows = as_rows(x)
    if not out.numel():
        return out
    count, width = rows.shape
    block = triton.next_power_of_2(width)
    group = max(1, _ELEMENTS // block)
    _norm_kernel[(triton.cdiv(count, group),)](
        rows,
        rows.stride(0),
        rows if weight is None else weight.contiguous(),
        out,
        count,
        width,
        eps,
        WEIGHTED=weight is not None,
        ROWS=group,
        WIDTH=block,
        num_warps=warps(group * block),
    )
    return out


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """Return [..., C] as [R, C] with channels side by side; a copy only where it must be."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()


def warps(elements: int) -> int:
    """Return how many warps a program of so many elements takes: 16 elements a thread."""
    return min(16, max(1, elements // 512))
