"""Attention over packed records in Triton: records are decoded in registers, keys are split.

A program takes up to 64 heads of one row and some of the row's tiles of 64 keys, first those of
the window, then the others. Where a row is split, a second launch adds the parts in order.
Limits: one program fills a processor (208 KB of shared memory for 64 queries, a tile of numbers and
three of records; the sums in half of the registers), so nothing but fetching records overlaps with
the products; and both halves of its warps make the same logits, since Triton gives the rows of a
product that another one follows to all warps, and there are only 64.
"""

import functools
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import INTERPRETED, narrow
from jit_kernels.paged_attention.device_records import code_part, find_records, rotated_part

if TYPE_CHECKING:
    from jit_kernels.paged_attention import PagedKeys, SplitPlan

TILE = 64
WARPS = 8
# A slot is read two tiles before its record, a record two tiles before its use.
STAGES = 5
MOST_PARTS = 64
# What a program costs beside its tiles, and what a part costs that is added, in tiles.
START_TILES = 2.0
ADDED_TILES = 0.02
# Parts that are added at once.
GROUP = 8
# Where bits must not depend on company: tiles that make a part worth while, and parts of a row.
FIXED_TILES = 4
FIXED_PARTS = 16
LOG2_E = 1.4426950408889634
NOTHING = tl.constexpr(-1e30)


@triton.jit
def fold_tile(
    logits: tl.tensor, found: tl.tensor, greatest: tl.tensor, total: tl.tensor
) -> tl.tensor:
    """Return (p [H, K], factor of old sums [H], new greatest, new total); logits are base 2."""
    logits = tl.where(found[None, :], logits, float("-inf"))
    higher = tl.maximum(greatest, tl.max(logits, 1))
    p = tl.exp2(logits - higher[:, None])
    factor = tl.exp2(greatest - higher)
    return p, factor, higher, total * factor + tl.sum(p, 1)


@triton.jit
def product(a: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """Return `total + a @ b`; products of float32 exact."""
    if INTERPRETED:
        return total + tl.dot(a, b, input_precision="ieee")
    return tl.dot(a, b, total)


@triton.jit
def _fold(
    q0: tl.tensor, q1: tl.tensor, q2: tl.tensor, q3: tl.tensor, greatest: tl.tensor,
    total: tl.tensor, o0: tl.tensor, o1: tl.tensor, o2: tl.tensor, o3: tl.tensor,
    window_ptr: tl.tensor, window_slots_ptr: tl.tensor, window_length: tl.tensor,
    extra_ptr: tl.tensor, extra_slots_ptr: tl.tensor, extra_length: tl.tensor, tile: tl.tensor,
    window_tiles: tl.tensor, scale: tl.tensor, EXTRA: tl.constexpr, WINDOW_ROWS: tl.constexpr,
    WINDOW_BYTES: tl.constexpr, EXTRA_ROWS: tl.constexpr, EXTRA_BYTES: tl.constexpr,
    KEYS: tl.constexpr, HEADS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Fold one of a row's tiles into its sums: first come those of the window."""
    pages_ptr, slots_ptr, length = window_ptr, window_slots_ptr, window_length
    page_rows, page_bytes = WINDOW_ROWS, WINDOW_BYTES
    place = tile * KEYS + tl.arange(0, KEYS)
    if EXTRA:
        # One loop over both sets: with two, the sums no longer fit into the registers.
        mine = tile < window_tiles
        pages_ptr = tl.where(mine, window_ptr, extra_ptr)
        slots_ptr = tl.where(mine, window_slots_ptr, extra_slots_ptr)
        length = tl.where(mine, window_length, extra_length)
        place -= tl.where(mine, 0, window_tiles * KEYS)
        if WINDOW_ROWS != EXTRA_ROWS or WINDOW_BYTES != EXTRA_BYTES:
            page_rows = tl.where(mine, WINDOW_ROWS, EXTRA_ROWS)
            page_bytes = tl.where(mine, WINDOW_BYTES, EXTRA_BYTES)
    slots = tl.load(slots_ptr + place, mask=place < length, other=-1)
    found = slots >= 0
    page, row, low, high = find_records(pages_ptr, slots, page_rows, page_bytes)
    k0 = code_part(pages_ptr, page, row, found, low, page_bytes, 0, 4, 0, KEYS)
    k1 = code_part(pages_ptr, page, row, found, high, page_bytes, 256, 2, 0, KEYS)
    k2 = code_part(pages_ptr, page, row, found, high, page_bytes, 384, 1, 16, KEYS)
    k3 = rotated_part(pages_ptr, page, row, found, page_bytes)
    logits = product(q0, tl.trans(k0), tl.zeros([HEADS, KEYS], tl.float32))
    logits = product(q1, tl.trans(k1), logits)
    logits = product(q2, tl.trans(k2), logits)
    logits = product(q3, tl.trans(k3), logits)
    p, factor, greatest, total = fold_tile(logits * scale, found, greatest, total)
    p, factor = p.to(k0.dtype), factor[:, None]
    o0, o1, o2, o3 = o0 * factor, o1 * factor, o2 * factor, o3 * factor
    o0, o1 = product(p, k0, o0), product(p, k1, o1)
    o2, o3 = product(p, k2, o2), product(p, k3, o3)
    return greatest, total, o0, o1, o2, o3


@triton.jit
def _load_queries(
    q_ptr: tl.tensor, head: tl.tensor, heads: tl.tensor, FIRST: tl.constexpr, WIDTH: tl.constexpr
) -> tl.tensor:
    at = q_ptr + head[:, None] * 512 + (FIRST + tl.arange(0, WIDTH))[None, :]
    q = tl.load(at, mask=(head < heads)[:, None], other=0.0)
    return q.to(tl.float32) if INTERPRETED else q


@triton.jit
def _store_part(
    out_ptr: tl.tensor, o: tl.tensor, head: tl.tensor, heads: tl.tensor, FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    at = out_ptr + head[:, None] * 512 + (FIRST + tl.arange(0, WIDTH))[None, :]
    tl.store(at, narrow(o, out_ptr.dtype.element_ty), mask=(head < heads)[:, None])


@triton.jit
def _count(
    lengths_ptr: tl.tensor, row: tl.tensor, columns: tl.tensor, HAS_LENGTHS: tl.constexpr
) -> tl.tensor:
    """Return how many of a row's slots are read."""
    if HAS_LENGTHS:
        return tl.minimum(tl.load(lengths_ptr + row), columns)
    return columns


@triton.jit
def share_of(total: tl.tensor, greatest: tl.tensor, sink: tl.tensor) -> tl.tensor:
    """Return the denominator with the sink in it, 1 where there is neither key nor sink."""
    whole = total + tl.exp2(tl.minimum(sink - greatest, 120.0))
    return tl.where(whole == 0.0, 1.0, whole)


@triton.jit
def _parts_kernel(
    q_ptr: tl.tensor, q_row: tl.tensor, window_ptr: tl.tensor, window_slots_ptr: tl.tensor,
    window_row: tl.tensor, window_lengths_ptr: tl.tensor, window_columns: tl.tensor,
    extra_ptr: tl.tensor, extra_slots_ptr: tl.tensor, extra_row: tl.tensor,
    extra_lengths_ptr: tl.tensor, extra_columns: tl.tensor, sink_ptr: tl.tensor,
    out_ptr: tl.tensor, sums_ptr: tl.tensor, heads: tl.tensor, scale: tl.tensor,
    WINDOW_LENGTHS: tl.constexpr, WINDOW_ROWS: tl.constexpr, WINDOW_BYTES: tl.constexpr,
    EXTRA: tl.constexpr, EXTRA_LENGTHS: tl.constexpr, EXTRA_ROWS: tl.constexpr,
    EXTRA_BYTES: tl.constexpr, PARTS: tl.constexpr, PART_TILES: tl.constexpr,
    HEADS: tl.constexpr, KEYS: tl.constexpr, LOG2_E: tl.constexpr,
) -> None:  # fmt: skip
    """Attend over one part of a row's tiles; a row in one part is finished here.

    out_ptr   [B, H, 512] bfloat16, or with PARTS > 1 results of parts [B, PARTS, H, 512] float32
    sums_ptr  [B, PARTS, H] float32: binary logarithm of the sum of exponentials
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    window_length = _count(window_lengths_ptr, row, window_columns, WINDOW_LENGTHS)
    window_tiles = tl.cdiv(window_length, KEYS)
    extra_length = window_length * 0
    if EXTRA:
        extra_length = _count(extra_lengths_ptr, row, extra_columns, EXTRA_LENGTHS)
    tiles = window_tiles + tl.cdiv(extra_length, KEYS)
    parts = tl.maximum(tl.minimum(tl.cdiv(tiles, PART_TILES), PARTS), 1)
    if part >= parts:
        return
    first, last = tiles * part // parts, tiles * (part + 1) // parts
    queries = q_ptr + row * q_row
    q0 = _load_queries(queries, head, heads, 0, 256)
    q1 = _load_queries(queries, head, heads, 256, 128)
    q2 = _load_queries(queries, head, heads, 384, 64)
    q3 = _load_queries(queries, head, heads, 448, 64)
    greatest = tl.full([HEADS], NOTHING, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    o0 = tl.zeros([HEADS, 256], tl.float32)
    o1 = tl.zeros([HEADS, 128], tl.float32)
    o2 = tl.zeros([HEADS, 64], tl.float32)
    o3 = tl.zeros([HEADS, 64], tl.float32)
    window_slots_ptr += row * window_row
    extra_slots_ptr += row * extra_row
    if INTERPRETED:
        # The interpreter counts no loop whose bounds are computed.
        while first < last:
            greatest, total, o0, o1, o2, o3 = _fold(
                q0, q1, q2, q3, greatest, total, o0, o1, o2, o3, window_ptr, window_slots_ptr,
                window_length, extra_ptr, extra_slots_ptr, extra_length, first, window_tiles,
                scale, EXTRA, WINDOW_ROWS, WINDOW_BYTES, EXTRA_ROWS, EXTRA_BYTES, KEYS, HEADS,
            )  # fmt: skip
            first += 1
    else:
        for nth in range(0, last - first):
            greatest, total, o0, o1, o2, o3 = _fold(
                q0, q1, q2, q3, greatest, total, o0, o1, o2, o3, window_ptr, window_slots_ptr,
                window_length, extra_ptr, extra_slots_ptr, extra_length, first + nth, window_tiles,
                scale, EXTRA, WINDOW_ROWS, WINDOW_BYTES, EXTRA_ROWS, EXTRA_BYTES, KEYS, HEADS,
            )  # fmt: skip
    if PARTS == 1:
        sink = tl.load(sink_ptr + head, mask=head < heads, other=0.0) * LOG2_E
        whole = share_of(total, greatest, sink)[:, None]
        at = row * heads
    else:
        # One number, not greatest and total: to keep both would serialise the products.
        whole = tl.where(total == 0.0, 1.0, total)
        sums = tl.where(total == 0.0, NOTHING, greatest + tl.log2(whole))
        at = (row * PARTS + part) * heads
        tl.store(sums_ptr + at + head, sums, mask=head < heads)
        whole = whole[:, None]
    o0, o1, o2, o3 = o0 / whole, o1 / whole, o2 / whole, o3 / whole
    out_ptr += at * 512
    _store_part(out_ptr, o0, head, heads, 0, 256)
    _store_part(out_ptr, o1, head, heads, 256, 128)
    _store_part(out_ptr, o2, head, heads, 384, 64)
    _store_part(out_ptr, o3, head, heads, 448, 64)


@triton.jit
def _combine_kernel(
    parts_ptr: tl.tensor, sums_ptr: tl.tensor, sink_ptr: tl.tensor, out_ptr: tl.tensor,
    heads: tl.tensor, window_lengths_ptr: tl.tensor, window_columns: tl.tensor,
    extra_lengths_ptr: tl.tensor, extra_columns: tl.tensor, WINDOW_LENGTHS: tl.constexpr,
    EXTRA: tl.constexpr, EXTRA_LENGTHS: tl.constexpr, PARTS: tl.constexpr,
    PART_TILES: tl.constexpr, PARTS_POWER: tl.constexpr, GROUP: tl.constexpr,
    KEYS: tl.constexpr, LOG2_E: tl.constexpr,
) -> None:  # fmt: skip
    """Add the parts of one head of one row, in one order whatever the most parts are."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tiles = tl.cdiv(_count(window_lengths_ptr, row, window_columns, WINDOW_LENGTHS), KEYS)
    if EXTRA:
        tiles += tl.cdiv(_count(extra_lengths_ptr, row, extra_columns, EXTRA_LENGTHS), KEYS)
    parts = tl.maximum(tl.minimum(tl.cdiv(tiles, PART_TILES), PARTS), 1)
    part = tl.arange(0, PARTS_POWER)
    sums_at = sums_ptr + (row * PARTS + part) * heads + head
    sums = tl.load(sums_at, mask=part < parts, other=NOTHING)
    greatest = tl.max(sums, 0)
    total = tl.sum(tl.where(sums > NOTHING, tl.exp2(sums - greatest), 0.0), 0)
    column = tl.arange(0, 512)
    o = tl.zeros([512], tl.float32)
    for first in range(0, PARTS, GROUP):
        some = first + tl.arange(0, GROUP)
        line = (row * PARTS + some) * heads + head
        mine = tl.load(sums_ptr + line, mask=some < parts, other=NOTHING)
        at = parts_ptr + line[:, None] * 512 + column[None, :]
        results = tl.load(at, mask=(some < parts)[:, None], other=0.0)
        o += tl.sum(tl.exp2(mine - greatest)[:, None] * results, 0)
    whole = share_of(total, greatest, tl.load(sink_ptr + head) * LOG2_E)
    out_ptr += (row * heads + head) * 512
    tl.store(out_ptr + column, narrow(o / whole, out_ptr.dtype.element_ty))


def paged_attention(
    q: torch.Tensor,
    window: "PagedKeys",
    extra: "PagedKeys | None",
    sink: torch.Tensor,
    scale: float,
    plan: "SplitPlan",
    deterministic: bool,
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_attention.paged_attention`."""
    q = q if q.stride(2) == 1 and q.stride(1) == q.shape[2] else q.contiguous()
    rows, heads, width = q.shape
    out = torch.empty((rows, heads, width), dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    block = min(64, max(16, triton.next_power_of_2(heads)))
    groups = triton.cdiv(heads, block)
    columns = window.slots.shape[1] + (0 if extra is None else extra.slots.shape[1])
    parts, part_tiles = _division(rows * groups, columns // TILE, q.device, deterministic)
    other = window if extra is None else extra
    lengths = {
        "WINDOW_LENGTHS": window.lengths is not None,
        "EXTRA": extra is not None,
        "EXTRA_LENGTHS": other.lengths is not None,
        "PARTS": parts,
        "PART_TILES": part_tiles,
        "KEYS": TILE,
        "LOG2_E": LOG2_E,
    }
    target, sums = out, sink
    if parts > 1:
        shape = (rows, parts, heads, width)
        target = torch.empty(shape, dtype=torch.float32, device=q.device)
        sums = torch.empty(shape[:3], dtype=torch.float32, device=q.device)
    _parts_kernel[(rows, groups, parts)](
        *(q, q.stride(0), *_arguments(window), *_arguments(other)),
        *(sink, target, sums, heads, scale * LOG2_E),
        WINDOW_ROWS=window.layout.page_rows,
        WINDOW_BYTES=window.layout.page_bytes,
        EXTRA_ROWS=other.layout.page_rows,
        EXTRA_BYTES=other.layout.page_bytes,
        HEADS=block,
        num_warps=WARPS,
        num_stages=STAGES,
        **lengths,
    )
    if parts > 1:
        _combine_kernel[(rows, heads)](
            *(target, sums, sink, out, heads),
            *(_arguments(window)[3:] + _arguments(other)[3:]),
            PARTS_POWER=MOST_PARTS,
            GROUP=GROUP,
            num_warps=4,
            **lengths,
        )
    return out


def _arguments(keys: "PagedKeys") -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor, int]:
    """Return pages, slots, their row stride, lengths (anything where there are none), columns."""
    lengths = keys.slots if keys.lengths is None else keys.lengths
    return keys.pages, keys.slots, keys.slots.stride(0), lengths, keys.slots.shape[1]


def _division(
    programs: int, tiles: int, device: torch.device, deterministic: bool
) -> tuple[int, int]:
    """Return (most parts of a row, tiles that make a part)."""
    if deterministic:
        # At least two: a row in one part is rounded otherwise where there is room for one only.
        return max(2, min(FIXED_PARTS, triton.cdiv(tiles, FIXED_TILES))), FIXED_TILES
    return _quickest_parts(programs, tiles, _processors(device)), 1


@functools.cache
def _quickest_parts(programs: int, tiles: int, processors: int) -> int:
    """Return into how many parts to split rows of so many tiles, one program a processor."""

    def cost(parts: int) -> float:
        waves = triton.cdiv(programs * parts, processors)
        added = 1.0 + ADDED_TILES * programs * parts if parts > 1 else 0.0
        return waves * (START_TILES + triton.cdiv(tiles, parts)) + added

    return min(range(1, min(tiles, MOST_PARTS) + 1), key=cost)


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 3
    return torch.cuda.get_device_properties(device).multi_processor_count
