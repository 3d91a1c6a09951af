"""Routed experts over bfloat16 weights in Triton: each chosen expert's weights are read once.

A block is up to SIZE pairs of row and expert of one expert. The weight's rows are the tall side of
every product, activations the narrow one. One launch gates, one multiplies down, one sums up in the
order of the choices. Experts with biases (`jit_kernels.biased_moe`) take the same kernels. Numbers
of other kinds are left to the reference.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import dot_bf16, narrow
from jit_kernels.device_order import await_kernels, early
from jit_kernels.expert_blocks import expert_blocks
from jit_kernels.moe import reference
from jit_kernels.streamed_moe.triton_backend import weighted_sum
from jit_kernels.triton_launch import prepared


class Biased(NamedTuple):
    """What experts with biases have besides; see `jit_kernels.biased_moe`."""

    into: torch.Tensor
    back: torch.Tensor
    alpha: float


class Tile(NamedTuple):
    """Rows of the weight a program takes, channels a step, warps and stages."""

    rows: int
    depth: int
    warps: int
    stages: int


# By rows to a block.
GATE_UP = {
    **{size: Tile(64, 64, 4, 4) for size in (8, 16, 32)},
    64: Tile(64, 64, 4, 4),
    128: Tile(64, 64, 8, 3),
}
DOWN = {
    **{size: Tile(64, 128, 4, 4) for size in (8, 16, 32)},
    64: Tile(128, 64, 4, 4),
    128: Tile(128, 64, 8, 4),
}
# So few blocks leave processors idle unless programs take fewer rows.
_FEW_BLOCKS, _FEW = 12, Tile(32, 128, 2, 4)
# Rows to a block for the mean number of rows of an expert; and where bits are fixed.
_SIZES, _LARGEST, _FIXED = ((4, 8), (10, 16), (22, 32), (96, 64)), 128, 32


@triton.jit
def _expert_of(
    expert_ptr: tl.tensor, block: tl.tensor, COUNT: tl.constexpr, ALONE: tl.constexpr
) -> tl.tensor:
    """Return the expert of a block, -1 for none; that of a pair where a row is ALONE."""
    expert = tl.load(expert_ptr + block).to(tl.int32)
    if ALONE:
        # Others belong to another rank.
        expert = tl.where((expert >= 0) & (expert < COUNT), expert, -1)
    return expert


@triton.jit
def _slots_of(
    slots_ptr: tl.tensor, block: tl.tensor, SIZE: tl.constexpr, ALONE: tl.constexpr
) -> tl.tensor:
    """Return the pairs of a block, -1 for none."""
    lane = tl.arange(0, SIZE)
    return tl.where(lane == 0, block, -1) if ALONE else tl.load(slots_ptr + block * SIZE + lane)


@triton.jit
def _gate_up_kernel(
    x_ptr: tl.tensor, weight_ptr: tl.tensor, bias_ptr: tl.tensor, hidden_ptr: tl.tensor,
    slots_ptr: tl.tensor, expert_ptr: tl.tensor, limit: tl.tensor, alpha: tl.tensor,
    INNER: tl.constexpr, WIDTH: tl.constexpr, TOP_K: tl.constexpr, COUNT: tl.constexpr,
    BIASED: tl.constexpr, ALONE: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Write ROWS channels of the gated inner activations of one block, hidden [pairs, INNER]."""
    block = tl.program_id(1)
    await_kernels(EARLY)
    expert = _expert_of(expert_ptr, block, COUNT, ALONE)
    if expert >= 0:
        slot = _slots_of(slots_ptr, block, SIZE, ALONE)
        live = (slot >= 0)[:, None]
        lane, row = tl.arange(0, DEPTH), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        inside = (row < INNER)[:, None]
        x_at = x_ptr + (tl.maximum(slot, 0) // TOP_K).to(tl.int64)[:, None] * WIDTH + lane[None, :]
        line = expert.to(tl.int64) * (2 * INNER) + row
        at = weight_ptr + line[:, None] * WIDTH + lane[None, :]
        gate = tl.zeros([ROWS, SIZE], tl.float32)
        up = tl.zeros([ROWS, SIZE], tl.float32)
        for first in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
            real = (first + lane < WIDTH)[None, :]
            x = tl.trans(tl.load(x_at + first, mask=live & real, other=0.0))
            gate = dot_bf16(tl.load(at + first, mask=inside & real, other=0.0), x, gate)
            more = tl.load(at + INNER * WIDTH + first, mask=inside & real, other=0.0)
            up = dot_bf16(more, x, up)
        if BIASED:
            gate += tl.load(bias_ptr + line, mask=row < INNER, other=0.0)[:, None]
            up += tl.load(bias_ptr + line + INNER, mask=row < INNER, other=0.0)[:, None]
        # Unlike a minimum, a choice leaves NaN as it is.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        if BIASED:
            gated = gate / (1.0 + tl.exp(-alpha * gate)) * (up + 1.0)
        else:
            gated = gate / (1.0 + tl.exp(-gate)) * up
        hidden = narrow(gated, tl.bfloat16)
        to = hidden_ptr + tl.maximum(slot, 0).to(tl.int64)[None, :] * INNER + row[:, None]
        tl.store(to, hidden, mask=(slot >= 0)[None, :] & inside)


@triton.jit
def _down_kernel(
    hidden_ptr: tl.tensor, weight_ptr: tl.tensor, bias_ptr: tl.tensor, out_ptr: tl.tensor,
    slots_ptr: tl.tensor, expert_ptr: tl.tensor, INNER: tl.constexpr, WIDTH: tl.constexpr,
    COUNT: tl.constexpr, BIASED: tl.constexpr, ALONE: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Write ROWS channels of what one block's expert gives, out [pairs, WIDTH] float32."""
    block = tl.program_id(1)
    await_kernels(EARLY)
    expert = _expert_of(expert_ptr, block, COUNT, ALONE)
    if expert >= 0:
        slot = _slots_of(slots_ptr, block, SIZE, ALONE)
        live = (slot >= 0)[:, None]
        lane, row = tl.arange(0, DEPTH), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        inside = (row < WIDTH)[:, None]
        x_at = hidden_ptr + tl.maximum(slot, 0).to(tl.int64)[:, None] * INNER + lane[None, :]
        line = expert.to(tl.int64) * WIDTH + row
        at = weight_ptr + line[:, None] * INNER + lane[None, :]
        sums = tl.zeros([ROWS, SIZE], tl.float32)
        for first in tl.range(0, INNER, DEPTH, num_stages=STAGES):
            real = (first + lane < INNER)[None, :]
            x = tl.trans(tl.load(x_at + first, mask=live & real, other=0.0))
            sums = dot_bf16(tl.load(at + first, mask=inside & real, other=0.0), x, sums)
        if BIASED:
            sums += tl.load(bias_ptr + line, mask=row < WIDTH, other=0.0)[:, None]
        to = out_ptr + tl.maximum(slot, 0).to(tl.int64)[None, :] * WIDTH + row[:, None]
        tl.store(to, sums, mask=(slot >= 0)[None, :] & inside)
    elif ALONE:
        column = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        nothing = tl.zeros([ROWS], tl.float32)
        tl.store(out_ptr + block.to(tl.int64) * WIDTH + column, nothing, mask=column < WIDTH)


_gate_up, _down = prepared(_gate_up_kernel), prepared(_down_kernel)


def moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    limit: float,
    invariant: bool,
    plus: Callable[[], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Run the chosen experts of each row; see `jit_kernels.moe.moe`."""
    if x.dtype != torch.bfloat16:
        return reference.moe(
            x, experts, weights, gate_up=gate_up, down=down, limit=limit, invariant=invariant,
            plus=plus,
        )  # fmt: skip
    return run_experts(
        x,
        experts,
        weights,
        gate_up=gate_up,
        down=down,
        limit=limit,
        biased=None,
        invariant=invariant,
        plus=plus,
    )


def run_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    limit: float,
    biased: Biased | None,
    invariant: bool,
    plus: Callable[[], torch.Tensor] | None,
) -> torch.Tensor:
    """Run experts of bfloat16 weights, with or without biases.

    biased  None: none, and the gate is that of SwiGLU
    The rest as in `jit_kernels.moe.moe`.
    """
    count, width, inner = down.shape
    pairs, top_k = experts.numel(), experts.shape[1]
    if not pairs:
        return x.new_zeros(x.shape, dtype=torch.float32) if plus is None else plus()
    size = _FIXED if invariant else _block_size(pairs / count)
    # Pairs of one row are a block each, as they are.
    alone = x.shape[0] == 1
    slots = expert = experts.contiguous()
    place = None
    if not alone:
        blocks = expert_blocks(experts, count, size)
        slots, expert, place = blocks.slots, blocks.expert, blocks.place
    number = expert.numel()
    few = not invariant and number <= _FEW_BLOCKS
    into, back, alpha = biased or (weights, weights, 1.0)
    shape = {"INNER": inner, "WIDTH": width, "COUNT": count, "BIASED": biased is not None}
    hidden = torch.empty((pairs, inner), dtype=torch.bfloat16, device=x.device)
    tile = _FEW if few else GATE_UP[size]
    _gate_up[(triton.cdiv(inner, tile.rows), number)](
        x.contiguous(), gate_up, into, hidden, slots, expert, limit, alpha, **shape,
        TOP_K=top_k, ALONE=alone, SIZE=size, ROWS=tile.rows, DEPTH=tile.depth,
        STAGES=tile.stages, num_warps=tile.warps, **early(),
    )  # fmt: skip
    outputs = torch.empty((pairs, width), dtype=torch.float32, device=x.device)
    tile = _FEW if few else DOWN[size]
    _down[(triton.cdiv(width, tile.rows), number)](
        hidden, down, back, outputs, slots, expert, **shape, ALONE=alone, SIZE=size,
        ROWS=tile.rows, DEPTH=tile.depth, STAGES=tile.stages, num_warps=tile.warps, **early(),
    )  # fmt: skip
    added = None if plus is None else plus()
    return weighted_sum(outputs, place, weights, added, torch.float32, in_order=False)


def _block_size(mean: float) -> int:
    """Return rows to a block for the mean number of rows of an expert: seldom a second block."""
    return next((size for most, size in _SIZES if mean <= most), _LARGEST)
