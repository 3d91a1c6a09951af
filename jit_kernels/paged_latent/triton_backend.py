"""Attention over latent records in Triton: a program has a tile of queries of one row.

The queries of a tile are tokens and heads, one after another; a record is read once, as key and as
value. Where tiles are few, several programs share the keys of one, and a second launch adds up what
they found. Programs are fixed where no plan is given: then no key is shared, and all tiles have one
size, since other sizes are multiplied by other instructions.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import dot_bf16, narrow
from jit_kernels.device_order import await_kernels, early
from jit_kernels.paged_gqa.triton_parts import combine_parts, parts_of, position_range
from jit_kernels.triton_launch import prepared

if TYPE_CHECKING:
    from jit_kernels.paged_gqa import PagedRows
    from jit_kernels.paged_latent import LatentPlan

_LOG2_E = 1.4426950408889634


class Tile(NamedTuple):
    """Queries and keys of a tile, warps and stages."""

    queries: int
    keys: int
    warps: int
    stages: int


# For rows of few queries, and for chunks and whatever has to be invariant.
_FEW, _MANY = Tile(16, 32, 4, 3), Tile(64, 32, 8, 2)


@triton.jit(do_not_specialize=["columns"])
def _kernel(
    q_ptr: tl.tensor, records_ptr: tl.tensor, table_ptr: tl.tensor, length_ptr: tl.tensor,
    first_ptr: tl.tensor, out_ptr: tl.tensor, found_ptr: tl.tensor, columns: tl.tensor,
    factor: tl.tensor, HEADS: tl.constexpr, LATENT: tl.constexpr, TURNED: tl.constexpr,
    PAGE: tl.constexpr, ALONE: tl.constexpr, PARTS: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, CHANNELS: tl.constexpr, OTHERS: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Attend; logits are times log2(e). LATENT and TURNED channels are padded."""
    WIDTH: tl.constexpr = LATENT + TURNED
    row, part = tl.program_id(1) // PARTS, tl.program_id(1) % PARTS
    await_kernels(EARLY)
    length = tl.load(length_ptr + row)
    begin, count = row, 1
    if not ALONE:
        begin = tl.load(first_ptr + row)
        count = tl.load(first_ptr + row + 1) - begin
    line = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    live = line < count * HEADS
    if tl.program_id(0) * QUERIES < count * HEADS:
        position = length - count + line // HEADS
        last = length - count + ((tl.program_id(0) + 1) * QUERIES - 1) // HEADS
        place = begin.to(tl.int64) * HEADS + line
        channel, other = tl.arange(0, CHANNELS), tl.arange(0, OTHERS)
        real, turned = channel < LATENT, other < TURNED
        q_at = q_ptr + place[:, None] * WIDTH
        q = tl.load(q_at + channel[None, :], mask=live[:, None] & real[None, :], other=0.0)
        q_turned = tl.load(
            q_at + LATENT + other[None, :], mask=live[:, None] & turned[None, :], other=0.0
        )
        most = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        sums = tl.zeros([QUERIES, CHANNELS], tl.float32)
        table_at = table_ptr + row.to(tl.int64) * columns
        start, stop = position_range(length, last, 0, part, 0, PARTS, KEYS)
        for at in tl.range(start, stop, KEYS, num_stages=STAGES):
            page = tl.load(table_at + at // PAGE).to(tl.int64)
            here = at + tl.arange(0, KEYS)
            held = (here < stop)[:, None]
            record_at = (
                records_ptr + (page * PAGE + at % PAGE + tl.arange(0, KEYS))[:, None] * WIDTH
            )
            latent = tl.load(record_at + channel[None, :], mask=held & real[None, :], other=0.0)
            keys = tl.load(
                record_at + LATENT + other[None, :], mask=held & turned[None, :], other=0.0
            )
            logits = dot_bf16(q, tl.trans(latent), tl.zeros([QUERIES, KEYS], tl.float32))
            logits = dot_bf16(q_turned, tl.trans(keys), logits) * factor
            seen = (here[None, :] <= position[:, None]) & (here < stop)[None, :]
            logits = tl.where(seen, logits, float("-inf"))
            higher = tl.maximum(most, tl.max(logits, axis=1))
            # Whoever has seen nothing so far has no highest logit to subtract.
            base = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(logits - base[:, None])
            old = tl.exp2(most - base)
            total = total * old + tl.sum(weights, axis=1)
            sums = dot_bf16(narrow(weights, tl.bfloat16), latent, sums * old[:, None])
            most = higher
        if PARTS == 1:
            read = sums / tl.where(total == 0.0, 1.0, total)[:, None]
            out_at = out_ptr + place[:, None] * LATENT + channel[None, :]
            tl.store(out_at, narrow(read, tl.bfloat16), mask=live[:, None] & real[None, :])
        else:
            # Of each part CHANNELS sums, then the highest logit and the total.
            found_at = found_ptr + (place * PARTS + part) * (CHANNELS + 2)
            tl.store(found_at[:, None] + channel[None, :], sums, mask=live[:, None])
            tl.store(found_at + CHANNELS, most, mask=live)
            tl.store(found_at + CHANNELS + 1, total, mask=live)


_attend = prepared(_kernel)


def paged_latent(
    q: torch.Tensor,
    records: torch.Tensor,
    rows: "PagedRows",
    values: int,
    scale: float,
    plan: "LatentPlan | None",
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_latent.paged_latent`. Without a plan it is invariant."""
    tokens, heads, width = q.shape
    page, count, invariant = records.shape[1], rows.length.shape[0], plan is None
    out = torch.empty((tokens, heads, values), dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    tile = _MANY if invariant or rows.most * heads > _FEW.queries * 2 else _FEW
    tiles = triton.cdiv(rows.most * heads, tile.queries)
    parts = 1 if invariant else parts_of(tiles * count, rows.page_table.shape[1] * page)
    channels = triton.next_power_of_2(values)
    found = out
    if parts > 1:
        shape = (tokens * heads * parts, channels + 2)
        found = torch.empty(shape, dtype=torch.float32, device=q.device)
    _attend[(tiles, count * parts)](
        *(q, records, rows.page_table, rows.length),
        *(rows.length if rows.first is None else rows.first, out, found),
        *(rows.page_table.shape[1], scale * _LOG2_E),
        HEADS=heads,
        LATENT=values,
        TURNED=width - values,
        PAGE=page,
        ALONE=rows.first is None,
        PARTS=parts,
        QUERIES=tile.queries,
        KEYS=tile.keys,
        CHANNELS=channels,
        OTHERS=max(16, triton.next_power_of_2(width - values)),
        STAGES=tile.stages,
        num_warps=tile.warps,
        **early(),
    )
    if parts > 1:
        combine_parts(found, None, out, parts)
    return out
