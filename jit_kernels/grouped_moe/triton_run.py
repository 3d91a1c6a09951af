"""Routed experts over rows sorted by expert: copy, multiply, gate and round, multiply, sum.

A row is read once and written to the places of all its experts, in Triton; products and gates are
handed over. Every launch has the size of the worst spread of rows.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from jit_kernels.expert_blocks import expert_blocks
from jit_kernels.expert_weights.forms import Fp8Experts
from jit_kernels.grouped_moe.sorted_rows import CHANNELS, SortedRows, block_size
from jit_kernels.streamed_moe.triton_backend import weighted_sum

__all__ = ["COLUMNS", "Gate", "Product", "run", "store_row"]

# Channels of a row that a program has.
COLUMNS = 1024

Product = Callable[[SortedRows, torch.Tensor, torch.Tensor, torch.Tensor], None]
Gate = Callable[[torch.Tensor, float, SortedRows], None]


@triton.jit
def store_row(
    codes: tl.tensor, scales: tl.tensor, codes_ptr: tl.tensor, scales_ptr: tl.tensor,
    row: tl.tensor, first_column: tl.tensor, head: tl.tensor, tail: tl.tensor,
    width: tl.constexpr, COLUMNS: tl.constexpr, live: tl.tensor,
) -> None:  # fmt: skip
    """Write part of a row to its place in one of two regions of `head` and `tail` rows."""
    column = first_column + tl.arange(0, COLUMNS)
    at = codes_ptr + row.to(tl.int64) * width + column
    tl.store(at, codes, mask=(column < width) & live)
    group = first_column // 128 + tl.arange(0, COLUMNS // 128)
    at = tl.where(row < head, group * head + row, width // 128 * head + group * tail + row - head)
    tl.store(scales_ptr + at, scales, mask=(group * 128 < width) & live)


@triton.jit(do_not_specialize=["head", "tail"])
def _scatter_kernel(
    x_ptr: tl.tensor, x_scales_ptr: tl.tensor, row_stride: tl.tensor, group_stride: tl.tensor,
    place_ptr: tl.tensor, codes_ptr: tl.tensor, scales_ptr: tl.tensor, head: tl.tensor,
    tail: tl.tensor, WIDTH: tl.constexpr, TOP_K: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Copy one row, codes and scales, to the places of its experts."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * COLUMNS
    column = first + tl.arange(0, COLUMNS)
    codes = tl.load(x_ptr + row * WIDTH + column, mask=column < WIDTH, other=0)
    group = first // 128 + tl.arange(0, COLUMNS // 128)
    at = x_scales_ptr + row * row_stride + group * group_stride
    scales = tl.load(at, mask=group * 128 < WIDTH, other=0.0)
    for choice in tl.static_range(TOP_K):
        place = tl.load(place_ptr + row * TOP_K + choice)
        store_row(
            codes, scales, codes_ptr, scales_ptr, place, first, head, tail, WIDTH, COLUMNS,
            place >= 0,
        )  # fmt: skip


def run(
    x: tuple[torch.Tensor, torch.Tensor],
    experts: torch.Tensor,
    weights: torch.Tensor,
    parts: Fp8Experts,
    *,
    limit: float,
    plus: torch.Tensor | None,
    out_dtype: torch.dtype,
    product: Product,
    gate: Gate,
    first: int,
) -> torch.Tensor:
    """Run the chosen experts with this product and this form of `triton_gate.gate_rows`.

    x      codes and scales
    first  blocks that make up the first region
    """
    count, width, inner = parts.sizes
    if not experts.numel():
        return torch.zeros_like(x[0], dtype=out_dtype) if plus is None else plus.to(out_dtype)
    codes, scales = x[0].contiguous(), x[1]
    top_k = experts.shape[1]
    size = block_size(experts.numel(), count)
    blocks = expert_blocks(experts, count, size)
    places = blocks.slots.shape[0]
    first = min(first, places // size)
    head, tail = first * size, places - first * size
    device = codes.device
    rows = SortedRows(*_empty_rows(places, width, device), blocks.member, first, size)
    columns = min(COLUMNS, triton.next_power_of_2(width))
    _scatter_kernel[(codes.shape[0], triton.cdiv(width, columns))](
        codes.view(torch.uint8), scales, *scales.stride(), blocks.place,
        rows.codes.view(torch.uint8), rows.scales, head, tail,
        WIDTH=width, TOP_K=top_k, COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    products = torch.empty((places, 2 * inner), dtype=torch.bfloat16, device=device)
    product(rows, parts.gate_up, parts.gate_up_scales, products)
    hidden = SortedRows(*_empty_rows(places, inner, device), blocks.member, first, size)
    gate(products, limit, hidden)
    outputs = torch.empty((places, width), dtype=torch.bfloat16, device=device)
    product(hidden, parts.down, parts.down_scales, outputs)
    return weighted_sum(outputs, blocks.place, weights, plus, out_dtype, in_order=True)


def _empty_rows(places: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.empty((places, width), dtype=torch.float8_e4m3fn, device=device)
    return codes, torch.empty(places * width // CHANNELS, dtype=torch.float32, device=device)
