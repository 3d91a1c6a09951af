"""Attention over pages in Triton: a program has a tile of queries of one row and one head of keys.

The queries of a tile are tokens and heads that share keys, one after another. Where tiles are few,
several programs share the keys of one, and a second launch adds up what they found.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import dot_bf16, narrow
from jit_kernels.device_order import await_kernels, early
from jit_kernels.paged_gqa.triton_parts import combine_parts, parts_of, position_range
from jit_kernels.triton_launch import prepared

if TYPE_CHECKING:
    from jit_kernels.paged_gqa import PagedRows

_KEYS = 64
# Queries of a tile: for rows of one token, and for chunks and whatever has to be invariant.
_FEW, _MANY = 16, 64
_LOG2_E = 1.4426950408889634


@triton.jit(do_not_specialize=["columns", "window"])
def _kernel(
    q_ptr: tl.tensor, keys_ptr: tl.tensor, values_ptr: tl.tensor, table_ptr: tl.tensor,
    length_ptr: tl.tensor, first_ptr: tl.tensor, sink_ptr: tl.tensor, out_ptr: tl.tensor,
    found_ptr: tl.tensor, columns: tl.tensor, factor: tl.tensor, window: tl.tensor,
    GROUPS: tl.constexpr, SHARE: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    ALONE: tl.constexpr, SINK: tl.constexpr, PARTS: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, CHANNELS: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Attend; logits are times log2(e). WIDTH channels are padded to CHANNELS."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    row, part = tl.program_id(2) // PARTS, tl.program_id(2) % PARTS
    group = tl.program_id(1)
    await_kernels(EARLY)
    length = tl.load(length_ptr + row)
    begin, count = row, 1
    if not ALONE:
        begin = tl.load(first_ptr + row)
        count = tl.load(first_ptr + row + 1) - begin
    line = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    live = line < count * SHARE
    if tl.program_id(0) * QUERIES < count * SHARE:
        token, head = line // SHARE, group * SHARE + line % SHARE
        position = length - count + token
        earliest = length - count + tl.program_id(0) * QUERIES // SHARE
        last = length - count + ((tl.program_id(0) + 1) * QUERIES - 1) // SHARE
        channel = tl.arange(0, CHANNELS)
        real = channel < WIDTH
        place = (begin + token).to(tl.int64) * (GROUPS * SHARE) + head
        q_at = q_ptr + place[:, None] * WIDTH + channel[None, :]
        q = tl.load(q_at, mask=live[:, None] & real[None, :], other=0.0)
        most = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        sums = tl.zeros([QUERIES, CHANNELS], tl.float32)
        start, stop = position_range(length, last, earliest, part, window, PARTS, KEYS)
        # What lies before all windows may be gone.
        oldest = tl.where(window > 0, earliest + 1 - window, 0)
        for at in tl.range(start, stop, KEYS):
            page = tl.load(table_ptr + row.to(tl.int64) * columns + at // PAGE).to(tl.int64)
            here = at + tl.arange(0, KEYS)
            slot = page * PAGE + at % PAGE + tl.arange(0, KEYS)
            offset = (slot * GROUPS + group)[:, None] * WIDTH + channel[None, :]
            held = ((here < stop) & (here >= oldest))[:, None] & real[None, :]
            keys = tl.load(keys_ptr + offset, mask=held, other=0.0)
            logits = dot_bf16(q, tl.trans(keys), tl.zeros([QUERIES, KEYS], tl.float32)) * factor
            seen = (here[None, :] <= position[:, None]) & (here < stop)[None, :]
            if window > 0:
                seen = seen & (here[None, :] > position[:, None] - window)
            logits = tl.where(seen, logits, float("-inf"))
            higher = tl.maximum(most, tl.max(logits, axis=1))
            # Whoever has seen nothing so far has no highest logit to subtract.
            base = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(logits - base[:, None])
            old = tl.exp2(most - base)
            total = total * old + tl.sum(weights, axis=1)
            values = tl.load(values_ptr + offset, mask=held, other=0.0)
            sums = dot_bf16(narrow(weights, tl.bfloat16), values, sums * old[:, None])
            most = higher
        if PARTS == 1:
            if SINK:
                sink = tl.load(sink_ptr + head, mask=live, other=0.0).to(tl.float32) * LOG2_E
                higher = tl.maximum(most, sink)
                old = tl.exp2(most - higher)
                total = total * old + tl.exp2(sink - higher)
                sums = sums * old[:, None]
            read = sums / tl.where(total == 0.0, 1.0, total)[:, None]
            out_at = out_ptr + place[:, None] * WIDTH + channel[None, :]
            tl.store(out_at, narrow(read, tl.bfloat16), mask=live[:, None] & real[None, :])
        else:
            # Of each part CHANNELS sums, then the highest logit and the total.
            found_at = found_ptr + (place * PARTS + part) * (CHANNELS + 2)
            tl.store(found_at[:, None] + channel[None, :], sums, mask=live[:, None])
            tl.store(found_at + CHANNELS, most, mask=live)
            tl.store(found_at + CHANNELS + 1, total, mask=live)


_attend = prepared(_kernel)


def paged_gqa(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: "PagedRows",
    scale: float,
    window: int,
    sink: torch.Tensor | None,
    invariant: bool,
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_gqa.paged_gqa`."""
    tokens, heads, width = q.shape
    _, page, groups, _ = keys.shape
    count, share, out = rows.length.shape[0], heads // groups, torch.empty_like(q)
    if not tokens:
        return out
    # Tiles of other sizes are multiplied by other instructions.
    queries = _FEW if rows.most * share <= _FEW and not invariant else _MANY
    tiles = triton.cdiv(rows.most * share, queries)
    parts = 1 if invariant else parts_of(tiles * groups * count, rows.page_table.shape[1] * page)
    channels = triton.next_power_of_2(width)
    found = out
    if parts > 1:
        shape = (tokens * heads * parts, channels + 2)
        found = torch.empty(shape, dtype=torch.float32, device=q.device)
    _attend[(tiles, groups, count * parts)](
        *(q, keys, values, rows.page_table, rows.length),
        *(rows.length if rows.first is None else rows.first, q if sink is None else sink),
        *(out, found, rows.page_table.shape[1], scale * _LOG2_E, window),
        GROUPS=groups,
        SHARE=share,
        WIDTH=width,
        PAGE=page,
        ALONE=rows.first is None,
        SINK=sink is not None,
        PARTS=parts,
        QUERIES=queries,
        KEYS=min(_KEYS, page),
        CHANNELS=channels,
        num_warps=4,
        **early(),
    )
    if parts > 1:
        combine_parts(found, sink, out, parts)
    return out
