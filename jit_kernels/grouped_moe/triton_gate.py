"""Sorted rows gated and rounded in Triton: a program has channels of a row."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import e4m3_codes, power_of_two, scale_exponent
from jit_kernels.grouped_moe.sorted_rows import SortedRows
from jit_kernels.grouped_moe.triton_run import COLUMNS, store_row


@triton.jit
def _round_groups(x: tl.tensor, COLUMNS: tl.constexpr) -> tl.tensor:
    """Return the codes of [COLUMNS] float32, and the scale of each 128 of them."""
    x = tl.reshape(x, [COLUMNS // 128, 128])
    exponent = scale_exponent(tl.max(tl.abs(x), 1))
    codes = e4m3_codes(x * power_of_two(254 - exponent)[:, None])
    return tl.reshape(codes, [COLUMNS]), power_of_two(exponent)


@triton.jit(do_not_specialize=["head", "tail"])
def _gate_kernel(
    products_ptr: tl.tensor, member_ptr: tl.tensor, codes_ptr: tl.tensor, scales_ptr: tl.tensor,
    limit: tl.tensor, head: tl.tensor, tail: tl.tensor, INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Gate one sorted row and round it; rows that nobody wants stay as they are."""
    row = tl.program_id(0)
    if tl.load(member_ptr + row) >= 0:
        first = tl.program_id(1) * COLUMNS
        column = first + tl.arange(0, COLUMNS)
        at = products_ptr + row.to(tl.int64) * (2 * INNER) + column
        inside = column < INNER
        gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(at + INNER, mask=inside, other=0.0).to(tl.float32)
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        codes, scales = _round_groups(gate / (1.0 + tl.exp(-gate)) * up, COLUMNS)
        store_row(
            codes, scales, codes_ptr, scales_ptr, row, first, head, tail, INNER, COLUMNS,
            row >= 0,
        )  # fmt: skip


def gate_rows(products: torch.Tensor, limit: float, hidden: SortedRows) -> None:
    """Gate and round sorted rows; those that nobody wants may become anything.

    products  [blocks * size, 2 * I] bfloat16, contiguous: gates, then what they let through
    limit     clamp of the SwiGLU, see `silu_mul`
    hidden    rows of I channels that know their members; codes and scales are written
    """
    places, inner = hidden.codes.shape
    head = hidden.first * hidden.size
    columns = min(COLUMNS, triton.next_power_of_2(inner))
    _gate_kernel[(places, triton.cdiv(inner, columns))](
        products, hidden.member, hidden.codes.view(torch.uint8), hidden.scales, limit, head,
        places - head, INNER=inner, COLUMNS=columns, num_warps=4,
    )  # fmt: skip
