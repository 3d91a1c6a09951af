"""Routed experts over rounded rows in Triton: sort, multiply, gate and round, multiply.

A row is read once and written to the places of all its experts. Every launch has the size of the
worst spread of rows; programs of blocks that are not there end at once.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import (
    e4m3_codes,
    narrow,
    power_of_two,
    scale_exponent,
)
from jit_kernels.expert_blocks import expert_blocks
from jit_kernels.expert_weights.forms import Fp8Experts
from jit_kernels.grouped_moe.sorted_rows import CHANNELS, SortedRows, block_size
from jit_kernels.streamed_moe.triton_backend import weighted_sum

_COLUMNS = 1024
_WEIGHT_ROWS, _WARPS, _STAGES = 128, 8, 3

Product = Callable[[SortedRows, torch.Tensor, torch.Tensor, torch.Tensor], None]
Gate = Callable[[torch.Tensor, float, SortedRows], None]


@triton.jit
def _round_groups(x: tl.tensor, COLUMNS: tl.constexpr) -> tl.tensor:
    """Return the codes of [COLUMNS] float32, and the scale of each 128 of them."""
    x = tl.reshape(x, [COLUMNS // 128, 128])
    exponent = scale_exponent(tl.max(tl.abs(x), 1))
    codes = e4m3_codes(x * power_of_two(254 - exponent)[:, None])
    return tl.reshape(codes, [COLUMNS]), power_of_two(exponent)


@triton.jit
def _store_row(
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
        _store_row(
            codes, scales, codes_ptr, scales_ptr, place, first, head, tail, WIDTH, COLUMNS,
            place >= 0,
        )  # fmt: skip


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
        _store_row(
            codes, scales, codes_ptr, scales_ptr, row, first, head, tail, INNER, COLUMNS,
            row >= 0,
        )  # fmt: skip


@triton.jit(do_not_specialize=["first_block", "rows"])
def _product_kernel(
    codes_ptr: tl.tensor, scales_ptr: tl.tensor, weight_ptr: tl.tensor,
    weight_scales_ptr: tl.tensor, member_ptr: tl.tensor, out_ptr: tl.tensor,
    first_block: tl.tensor, rows: tl.tensor, N: tl.constexpr, K: tl.constexpr,
    SIZE: tl.constexpr, WEIGHT_ROWS: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Write [SIZE, WEIGHT_ROWS] of one block's product.

    scales  of the region that begins at `first_block`, column by column of `rows`
    """
    inside = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    row = first_block.to(tl.int64) * SIZE + inside
    expert = tl.load(member_ptr + first_block.to(tl.int64) * SIZE + tl.program_id(1) * SIZE)
    if expert >= 0:
        BLOCKS: tl.constexpr = K // 128
        line = tl.program_id(0) * WEIGHT_ROWS + tl.arange(0, WEIGHT_ROWS)
        lane = tl.arange(0, 128)
        weight_at = weight_ptr + expert.to(tl.int64) * (N * K)
        weight_at += line[:, None] * K + lane[None, :]
        x_at = codes_ptr + row[None, :] * K + lane[:, None]
        block_row = expert * (N // 128) + tl.program_id(0) * WEIGHT_ROWS // 128
        weight_scale_at = weight_scales_ptr + block_row * BLOCKS
        scale_at = scales_ptr + inside
        sums = tl.zeros([WEIGHT_ROWS, SIZE], tl.float32)
        for block in tl.range(0, BLOCKS, num_stages=STAGES):
            w = tl.load(weight_at + block * 128)
            x = tl.load(x_at + block * 128)
            scale = tl.load(weight_scale_at + block) * tl.load(scale_at + block * rows)
            sums += tl.dot(w, x) * scale[None, :]
        total = narrow(sums, out_ptr.dtype.element_ty)
        tl.store(out_ptr + row[None, :] * N + line[:, None], total)


def grouped_moe(
    codes: torch.Tensor,
    scales: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    parts: Fp8Experts,
    limit: float,
    plus: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Run the chosen experts; see `jit_kernels.grouped_moe.grouped_moe`."""
    rows = (codes, scales)
    return run(
        rows, experts, weights, parts, limit=limit, plus=plus, out_dtype=out_dtype, product=product
    )


def product(
    rows: SortedRows, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the product of every block and its expert's weight to `out`, [blocks * size, N]."""
    head, tail = rows.region_scales()
    for scales, first in ((head, 0), (tail, rows.first)):
        multiply_region(rows, scales, weight, weight_scales, out, first=first)


def multiply_region(
    rows: SortedRows,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    out: torch.Tensor,
    *,
    first: int,
) -> None:
    """Multiply the blocks whose scales these are, [region rows, K / 128], from block `first` on."""
    size, blocks = rows.size, scales.shape[0] // rows.size
    columns, depth = weight.shape[1:]
    if blocks:
        _product_kernel[(columns // _WEIGHT_ROWS, blocks)](
            rows.codes, scales, weight, weight_scales, rows.member, out, first, blocks * size,
            N=columns, K=depth, SIZE=size, WEIGHT_ROWS=_WEIGHT_ROWS, STAGES=_STAGES,
            num_warps=_WARPS,
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
    gate: Gate | None = None,
    first: int = 0,
) -> torch.Tensor:
    """Run the chosen experts with this product and, if given, this form of `gate_rows`.

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
    columns = min(_COLUMNS, triton.next_power_of_2(width))
    _scatter_kernel[(codes.shape[0], triton.cdiv(width, columns))](
        codes.view(torch.uint8), scales, *scales.stride(), blocks.place,
        rows.codes.view(torch.uint8), rows.scales, head, tail,
        WIDTH=width, TOP_K=top_k, COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    products = torch.empty((places, 2 * inner), dtype=torch.bfloat16, device=device)
    product(rows, parts.gate_up, parts.gate_up_scales, products)
    hidden = SortedRows(*_empty_rows(places, inner, device), blocks.member, first, size)
    (gate or gate_rows)(products, limit, hidden)
    outputs = torch.empty((places, width), dtype=torch.bfloat16, device=device)
    product(hidden, parts.down, parts.down_scales, outputs)
    return weighted_sum(outputs, blocks.place, weights, plus, out_dtype, in_order=True)


def gate_rows(products: torch.Tensor, limit: float, hidden: SortedRows) -> None:
    """Gate and round sorted rows; those that nobody wants may become anything.

    products  [blocks * size, 2 * I] bfloat16, contiguous: gates, then what they let through
    limit     clamp of the SwiGLU, see `silu_mul`
    hidden    rows of I channels that know their members; codes and scales are written
    """
    places, inner = hidden.codes.shape
    head = hidden.first * hidden.size
    columns = min(_COLUMNS, triton.next_power_of_2(inner))
    _gate_kernel[(places, triton.cdiv(inner, columns))](
        products, hidden.member, hidden.codes.view(torch.uint8), hidden.scales, limit, head,
        places - head, INNER=inner, COLUMNS=columns, num_warps=4,
    )  # fmt: skip


def _empty_rows(places: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.empty((places, width), dtype=torch.float8_e4m3fn, device=device)
    return codes, torch.empty(places * width // CHANNELS, dtype=torch.float32, device=device)
