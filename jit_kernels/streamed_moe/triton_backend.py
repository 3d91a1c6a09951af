"""Routed experts in Triton: weights go from memory through registers into tensor cores once.

A block is up to SIZE pairs of row and expert of one expert. The weight's rows are the tall side of
every product, which leaves them in registers, where 4 or 8 bits become bfloat16; activations are
the narrow side. One launch gates, one multiplies down, one sums up in the order of the choices.

On paper, for an H200: 4.27 TB/s are 36 fp4 weights per clock and multiprocessor. Unpacking takes
2.7 instructions a weight in the code that Triton 3.6 makes, of 3.5 that fit; a program of 128 rows
keeps two stages of 17 kB under way and four of them fit a multiprocessor, 32 kB of latency.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import dot_bf16, narrow
from jit_kernels.device_order import await_kernels, early
from jit_kernels.expert_blocks import expert_blocks
from jit_kernels.expert_weights.forms import Fp4Experts, Fp8Experts
from jit_kernels.expert_weights.triton_backend import fp4_parts, fp4_scales, fp8_numbers
from jit_kernels.triton_launch import prepared


class Tile(NamedTuple):
    """Rows of the weight a program takes, channels a step, warps and stages."""

    rows: int
    depth: int
    warps: int
    stages: int


# By rows to a block; gate_up takes two weights of so many rows. Two warps keep blocks of 16 rows in
# fp8 on the older tensor instruction, whose registers take four bytes at once. Up to the first
# entry of FEW_BLOCKS programs take half the rows, so that there are enough to fill the chip.
GATE_UP_FP4 = {size: Tile(64, 256, 4, 3) for size in (8, 16, 32, 64)}
GATE_UP_FP8 = {
    8: Tile(64, 128, 4, 4),
    16: Tile(32, 128, 2, 5),
    32: Tile(64, 128, 4, 4),
    64: Tile(64, 128, 4, 3),
}
DOWN_FP4 = {
    8: Tile(128, 256, 4, 3),
    16: Tile(64, 256, 4, 4),
    32: Tile(64, 256, 4, 3),
    64: Tile(64, 256, 4, 3),
}
DOWN_FP8 = {
    8: Tile(128, 128, 4, 4),
    16: Tile(64, 128, 2, 5),
    32: Tile(64, 128, 4, 4),
    64: Tile(64, 128, 4, 4),
}
FEW_BLOCKS = (12, {True: Tile(32, 256, 2, 4), False: Tile(32, 128, 2, 5)})
_SUM_COLUMNS = 1024


@triton.jit
def _fp4_step(
    sums: tl.tensor, x_at: tl.tensor, live: tl.tensor, word_at: tl.tensor, scale_at: tl.tensor,
    ROWS: tl.constexpr, GROUPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return `sums` plus the product of 32 * GROUPS channels."""
    words = tl.load(word_at)
    scales = fp4_scales(tl.load(scale_at), ROWS, GROUPS)
    w0, w1, w2, w3 = fp4_parts(words, scales)
    sums = dot_bf16(w0, tl.trans(tl.load(x_at, mask=live, other=0.0)), sums)
    sums = dot_bf16(w1, tl.trans(tl.load(x_at + 8, mask=live, other=0.0)), sums)
    sums = dot_bf16(w2, tl.trans(tl.load(x_at + 16, mask=live, other=0.0)), sums)
    return dot_bf16(w3, tl.trans(tl.load(x_at + 24, mask=live, other=0.0)), sums)


@triton.jit
def _fp4_pair_step(
    gate: tl.tensor, up: tl.tensor, x_at: tl.tensor, live: tl.tensor, word_at: tl.tensor,
    scale_at: tl.tensor, up_words: tl.constexpr, up_scales: tl.constexpr, ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return both sums plus the products of 32 * GROUPS channels."""
    gate_words, more_words = tl.load(word_at), tl.load(word_at + up_words)
    gate_scales, more_scales = tl.load(scale_at), tl.load(scale_at + up_scales)
    x0 = tl.trans(tl.load(x_at, mask=live, other=0.0))
    x1 = tl.trans(tl.load(x_at + 8, mask=live, other=0.0))
    x2 = tl.trans(tl.load(x_at + 16, mask=live, other=0.0))
    x3 = tl.trans(tl.load(x_at + 24, mask=live, other=0.0))
    g0, g1, g2, g3 = fp4_parts(gate_words, fp4_scales(gate_scales, ROWS, GROUPS))
    u0, u1, u2, u3 = fp4_parts(more_words, fp4_scales(more_scales, ROWS, GROUPS))
    gate, up = dot_bf16(g0, x0, gate), dot_bf16(u0, x0, up)
    gate, up = dot_bf16(g1, x1, gate), dot_bf16(u1, x1, up)
    gate, up = dot_bf16(g2, x2, gate), dot_bf16(u2, x2, up)
    return dot_bf16(g3, x3, gate), dot_bf16(u3, x3, up)


@triton.jit
def _gate_up_kernel(
    x_ptr: tl.tensor, weight_ptr: tl.tensor, scale_ptr: tl.tensor, hidden_ptr: tl.tensor,
    slots_ptr: tl.tensor, expert_ptr: tl.tensor, x_stride: tl.tensor, limit: tl.tensor,
    INNER: tl.constexpr, WIDTH: tl.constexpr, TOP_K: tl.constexpr, FP4: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Write ROWS channels of the gated inner activations of one block, hidden [pairs, INNER]."""
    block = tl.program_id(1)
    expert = tl.load(expert_ptr + block)
    if expert >= 0:
        slot = tl.load(slots_ptr + block * SIZE + tl.arange(0, SIZE))
        live = (slot >= 0)[:, None]
        x_at = x_ptr + (tl.maximum(slot, 0) // TOP_K).to(tl.int64)[:, None] * x_stride
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        line = expert.to(tl.int64) * (2 * INNER) + tl.program_id(0) * ROWS
        inside = tl.arange(0, ROWS)[:, None]
        gate = tl.zeros([ROWS, SIZE], tl.float32)
        up = tl.zeros([ROWS, SIZE], tl.float32)
        if FP4:
            GROUPS: tl.constexpr = DEPTH // 32
            word = tl.arange(0, DEPTH // 4)
            x_at += (word // 8 * 32 + word % 8)[None, :]
            word_at = weight_ptr + line * (WIDTH // 4) + (inside * (WIDTH // 4) + word[None, :])
            scale_at = scale_ptr + line * (WIDTH // 32)
            scale_at += inside * (WIDTH // 32) + tl.arange(0, GROUPS)[None, :]
            for step in tl.range(0, WIDTH // DEPTH, num_stages=STAGES):
                gate, up = _fp4_pair_step(
                    gate, up, x_at + step * DEPTH, live, word_at + step * (DEPTH // 4),
                    scale_at + step * GROUPS, INNER * (WIDTH // 4), INNER * (WIDTH // 32), ROWS,
                    GROUPS,
                )  # fmt: skip
        else:
            lane = tl.arange(0, DEPTH)
            x_at += lane[None, :]
            code_at = weight_ptr + line * WIDTH + (inside * WIDTH + lane[None, :])
            scale_at = scale_ptr + line // 128 * (WIDTH // 128)
            for step in tl.range(0, WIDTH // 128, num_stages=STAGES):
                x = tl.trans(tl.load(x_at + step * 128, mask=live, other=0.0))
                w = fp8_numbers(tl.load(code_at + step * 128))
                v = fp8_numbers(tl.load(code_at + INNER * WIDTH + step * 128))
                none = tl.zeros([ROWS, SIZE], tl.float32)
                gate += dot_bf16(w, x, none) * tl.load(scale_at + step)
                up_scale = tl.load(scale_at + (INNER // 128) * (WIDTH // 128) + step)
                up += dot_bf16(v, x, none) * up_scale
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        hidden = narrow(gate / (1.0 + tl.exp(-gate)) * up, hidden_ptr.dtype.element_ty)
        at = hidden_ptr + tl.maximum(slot, 0).to(tl.int64)[None, :] * INNER + row[:, None]
        tl.store(at, hidden, mask=(slot >= 0)[None, :])


@triton.jit
def _down_kernel(
    hidden_ptr: tl.tensor, weight_ptr: tl.tensor, scale_ptr: tl.tensor, out_ptr: tl.tensor,
    slots_ptr: tl.tensor, expert_ptr: tl.tensor, INNER: tl.constexpr, WIDTH: tl.constexpr,
    FP4: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Write ROWS channels of what one block's expert gives, out [pairs, WIDTH] float32."""
    block = tl.program_id(1)
    expert = tl.load(expert_ptr + block)
    if expert >= 0:
        slot = tl.load(slots_ptr + block * SIZE + tl.arange(0, SIZE))
        live = (slot >= 0)[:, None]
        x_at = hidden_ptr + tl.maximum(slot, 0).to(tl.int64)[:, None] * INNER
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        line = expert.to(tl.int64) * WIDTH + tl.program_id(0) * ROWS
        inside = tl.arange(0, ROWS)[:, None]
        sums = tl.zeros([ROWS, SIZE], tl.float32)
        if FP4:
            GROUPS: tl.constexpr = DEPTH // 32
            word = tl.arange(0, DEPTH // 4)
            x_at += (word // 8 * 32 + word % 8)[None, :]
            word_at = weight_ptr + line * (INNER // 4) + (inside * (INNER // 4) + word[None, :])
            scale_at = scale_ptr + line * (INNER // 32)
            scale_at += inside * (INNER // 32) + tl.arange(0, GROUPS)[None, :]
            for step in tl.range(0, INNER // DEPTH, num_stages=STAGES):
                sums = _fp4_step(
                    sums, x_at + step * DEPTH, live, word_at + step * (DEPTH // 4),
                    scale_at + step * GROUPS, ROWS, GROUPS,
                )  # fmt: skip
        else:
            lane = tl.arange(0, DEPTH)
            x_at += lane[None, :]
            code_at = weight_ptr + line * INNER + (inside * INNER + lane[None, :])
            scale_at = scale_ptr + line // 128 * (INNER // 128)
            for step in tl.range(0, INNER // 128, num_stages=STAGES):
                x = tl.trans(tl.load(x_at + step * 128, mask=live, other=0.0))
                w = fp8_numbers(tl.load(code_at + step * 128))
                none = tl.zeros([ROWS, SIZE], tl.float32)
                sums += dot_bf16(w, x, none) * tl.load(scale_at + step)
        at = out_ptr + tl.maximum(slot, 0).to(tl.int64)[None, :] * WIDTH + row[:, None]
        tl.store(at, sums, mask=(slot >= 0)[None, :])


@prepared
@triton.jit
def _sum_kernel(
    outputs_ptr: tl.tensor, place_ptr: tl.tensor, weights_ptr: tl.tensor, plus_ptr: tl.tensor,
    out_ptr: tl.tensor, weights_stride: tl.tensor, plus_stride: tl.tensor, width: tl.tensor,
    TOP_K: tl.constexpr, PLACED: tl.constexpr, SORTED: tl.constexpr, PLUS: tl.constexpr,
    COLUMNS: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Sum a row's k outputs in order; they lie where `place` says, or by pair if not SORTED.

    Not PLACED: there is an output of every pair.
    """
    # What the kernels before made, outputs and what is added to them, nobody else reads.
    await_kernels(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros([COLUMNS], tl.float32)
    for choice in tl.static_range(TOP_K):
        line, ours = row * TOP_K + choice, inside
        if PLACED:
            place = tl.load(place_ptr + line)
            ours = inside & (place >= 0)
            line = place.to(tl.int64) if SORTED else line
        at = outputs_ptr + line * width + column
        part = tl.load(at, mask=ours, other=0.0).to(tl.float32)
        total += part * tl.load(weights_ptr + row * weights_stride + choice)
    if PLUS:
        total += tl.load(plus_ptr + row * plus_stride + column, mask=inside, other=0.0).to(
            tl.float32
        )
    total = narrow(total, out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * width + column, total, mask=inside)


def streamed_moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    parts: Fp8Experts | Fp4Experts,
    limit: float,
    added: Callable[[], torch.Tensor | None],
    out_dtype: torch.dtype,
    size: int,
) -> torch.Tensor:
    """Run the chosen experts; see `jit_kernels.streamed_moe.streamed_moe`."""
    count, width, inner = parts.sizes
    if not experts.numel():
        plus = added()
        return x.new_zeros(x.shape, dtype=out_dtype) if plus is None else plus.to(out_dtype)
    x = x if x.stride(1) == 1 else x.contiguous()
    blocks = expert_blocks(experts, count, size)
    limit_blocks = blocks.expert.shape[0]
    fp4 = isinstance(parts, Fp4Experts)
    hidden = torch.empty((experts.numel(), inner), dtype=torch.bfloat16, device=x.device)
    tile = _tile(GATE_UP_FP4 if fp4 else GATE_UP_FP8, size, limit_blocks, width, fp4=fp4)
    _gate_up_kernel[(inner // tile.rows, limit_blocks)](
        x, _raw(parts.gate_up), parts.gate_up_scales, hidden, blocks.slots, blocks.expert,
        x.stride(0), limit, INNER=inner, WIDTH=width, TOP_K=experts.shape[1], FP4=fp4, SIZE=size,
        ROWS=tile.rows, DEPTH=tile.depth, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    outputs = torch.empty((experts.numel(), width), dtype=torch.float32, device=x.device)
    tile = _tile(DOWN_FP4 if fp4 else DOWN_FP8, size, limit_blocks, inner, fp4=fp4)
    _down_kernel[(width // tile.rows, limit_blocks)](
        hidden, _raw(parts.down), parts.down_scales, outputs, blocks.slots, blocks.expert,
        INNER=inner, WIDTH=width, FP4=fp4, SIZE=size, ROWS=tile.rows, DEPTH=tile.depth,
        STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return weighted_sum(outputs, blocks.place, weights, added(), out_dtype, in_order=False)


def weighted_sum(
    outputs: torch.Tensor,
    place: torch.Tensor | None,
    weights: torch.Tensor,
    plus: torch.Tensor | None,
    out_dtype: torch.dtype,
    *,
    in_order: bool,
) -> torch.Tensor:
    """Sum each row's outputs with its weights over k in order, then add `plus`.

    outputs   [pairs, d], or sorted by expert if `in_order`
    place     [T * k] int32 from `expert_blocks`; pairs without a place count as zero; None: all
              have one
    """
    assert place is not None or not in_order, "what is sorted has places"
    rows, top_k = weights.shape
    width = outputs.shape[1]
    out = torch.empty((rows, width), dtype=out_dtype, device=outputs.device)
    weights = weights if weights.stride(1) == 1 else weights.contiguous()
    if plus is not None and plus.stride(1) != 1:
        plus = plus.contiguous()
    columns = min(_SUM_COLUMNS, triton.next_power_of_2(width))
    _sum_kernel[(rows, triton.cdiv(width, columns))](
        outputs,
        weights if place is None else place,
        weights,
        outputs if plus is None else plus,
        out,
        weights.stride(0),
        0 if plus is None else plus.stride(0),
        width,
        TOP_K=top_k,
        PLACED=place is not None,
        SORTED=in_order,
        PLUS=plus is not None,
        COLUMNS=columns,
        num_warps=4,
        **early(),
    )
    return out


def _raw(weight: torch.Tensor) -> torch.Tensor:
    """Return e4m3 codes as bytes; words as they are."""
    weight = weight.contiguous()
    return weight.view(torch.uint8) if weight.dtype == torch.float8_e4m3fn else weight


def _tile(table: dict[int, Tile], size: int, blocks: int, depth: int, *, fp4: bool) -> Tile:
    """Return the tile for blocks of `size`, its depth cut to what divides `depth`."""
    few, small = FEW_BLOCKS
    tile = small[fp4] if blocks <= few and size == min(table) else table[size]
    return tile if depth % tile.depth == 0 else tile._replace(depth=128)
