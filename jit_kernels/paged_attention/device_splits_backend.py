"""FlashMLA's split plans in one launch of Triton; a program knows all rows, and writes 64 records.

Two ways to divide, and the cheaper is taken. Either every row is cut into equal pieces of at most
so many tiles, one piece a processor. Or, where there are more rows than processors or pieces
would be too uneven, all rows lie end to end, each behind a few units for what it costs to begin
one, and are cut at equal distances; no processor then does more than one begin beyond that.

What things cost, in 64ths of the time that a tile takes, follows from profiles of an H200: adding
up takes 0.22 us for each part of the row that has most and about 0.03 us for each part there is, a
tile some 1.5 to 3 us, as estimated from steps of 1 and of 64 rows. So one row of 112 tiles is cut
into 28 parts, not 112, and 64 rows of 10 tiles into halves, not into 8 and 2. Near the best the
time hardly changes: the figures need not be exact.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.paged_attention.split_plans import KEY_TILE, RECORD_WORDS

if TYPE_CHECKING:
    from jit_kernels.paged_attention.split_plans import KeyCounts

ROWS = 64
PARTS = 64
# Sizes of pieces that are tried: 1, 2, ...; for rows with more tiles every second or third size.
SIZES = 64
WARPS = 8
# Tiles for which FlashMLA's own planner takes the beginning of a row.
BEGIN_TILES = 5
TILE_COST = 64
PART_COST = 8
_HUGE = tl.constexpr(1 << 30)


@triton.jit
def _tiles_of(
    row: tl.tensor, live: tl.tensor, window_ptr: tl.tensor, window_columns: tl.tensor,
    extra_ptr: tl.tensor, extra_columns: tl.tensor, WINDOW_LENGTHS: tl.constexpr,
    EXTRA_LENGTHS: tl.constexpr, TILE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the tiles of rows as the attention kernel counts them, 0 of rows not `live`.

    A row has one tile of its window even if that is empty, so no row has none.
    """
    if WINDOW_LENGTHS:
        window = tl.load(window_ptr + row, mask=live, other=0)
    else:
        window = row * 0 + window_columns
    if EXTRA_LENGTHS:
        extra = tl.load(extra_ptr + row, mask=live, other=0)
    else:
        extra = row * 0 + extra_columns
    tiles = tl.maximum((window + (TILE - 1)) // TILE, 1) + (extra + (TILE - 1)) // TILE
    return tl.where(live, tiles, 0)


@triton.jit
def _choose(
    rows: tl.tensor, processors: tl.tensor, window_ptr: tl.tensor, window_columns: tl.tensor,
    extra_ptr: tl.tensor, extra_columns: tl.tensor, WINDOW_LENGTHS: tl.constexpr,
    EXTRA_LENGTHS: tl.constexpr, TILE: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
    SIZES: tl.constexpr, BEGIN: tl.constexpr, TILE_COST: tl.constexpr, PART_COST: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return (one piece a processor?, most tiles of a piece, else units between cuts)."""
    lane = tl.arange(0, ROWS)
    # From 1 on, which is the least there is: what Triton knows of a number that begins as 0 makes
    # it divide by that.
    longest, total = rows * 0 + 1, rows * 0
    for chunk in range(CHUNKS):
        row = chunk * ROWS + lane
        tiles = _tiles_of(
            row, row < rows, window_ptr, window_columns, extra_ptr, extra_columns,
            WINDOW_LENGTHS, EXTRA_LENGTHS, TILE,
        )  # fmt: skip
        longest = tl.maximum(longest, tl.max(tiles, 0))
        total += tl.sum(tiles, 0)
    size = (tl.arange(0, SIZES) + 1) * ((longest + (SIZES - 1)) // SIZES)
    pieces = tl.zeros([SIZES], tl.int32)
    added = tl.zeros([SIZES], tl.int32)
    for chunk in range(CHUNKS):
        row = chunk * ROWS + lane
        tiles = _tiles_of(
            row, row < rows, window_ptr, window_columns, extra_ptr, extra_columns,
            WINDOW_LENGTHS, EXTRA_LENGTHS, TILE,
        )  # fmt: skip
        mine = (tiles[None, :] + (size - 1)[:, None]) // size[:, None]
        pieces += tl.sum(mine, 1)
        added += tl.sum(tl.where(mine > 1, mine, 0), 1)
    most = (longest + size - 1) // size
    cost = size * TILE_COST + tl.where(most > 1, most * PART_COST, 0) + added
    cost = tl.where(pieces <= processors, cost, _HUGE)
    least = tl.min(cost, 0)
    even = tl.min(tl.where(cost == least, size, _HUGE), 0)
    free = size * TILE_COST + most * PART_COST
    apart = tl.min(tl.where(free == tl.min(free, 0), size, _HUGE), 0)
    apart = tl.maximum(apart, (total + rows * BEGIN + processors - 1) // processors)
    end_to_end = apart * TILE_COST + ((longest + apart - 1) // apart + 1) * PART_COST + processors
    return least <= end_to_end, even, apart


@triton.jit
def _plan(
    kind: tl.tensor, records_ptr: tl.tensor, splits_ptr: tl.tensor, rows: tl.tensor,
    processors: tl.tensor, window_ptr: tl.tensor, window_columns: tl.tensor, extra_ptr: tl.tensor,
    extra_columns: tl.tensor, WINDOW_LENGTHS: tl.constexpr, EXTRA_LENGTHS: tl.constexpr,
    TILE: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    SIZES: tl.constexpr, BEGIN: tl.constexpr, TILE_COST: tl.constexpr, PART_COST: tl.constexpr,
) -> None:  # fmt: skip
    """Write one kind's records of this program's processors, and the splits of all rows."""
    one_each, size, apart = _choose(
        rows, processors, window_ptr, window_columns, extra_ptr, extra_columns, WINDOW_LENGTHS,
        EXTRA_LENGTHS, TILE, CHUNKS, ROWS, SIZES, BEGIN, TILE_COST, PART_COST,
    )  # fmt: skip
    part = tl.program_id(1) * PARTS + tl.arange(0, PARTS)
    stride = tl.where(one_each, 1, apart)
    start, stop = part * stride, part * stride + stride
    # Rows that end at or before a processor's start and stop, and where the last of them ends.
    first, first_at = tl.zeros([PARTS], tl.int32), tl.zeros([PARTS], tl.int32)
    last, last_at = tl.zeros([PARTS], tl.int32), tl.zeros([PARTS], tl.int32)
    units, splits = rows * 0, rows * 0
    splits_ptr += kind * (rows + 1)
    writes = tl.program_id(1) == 0
    tl.store(splits_ptr, 0, mask=writes)
    for chunk in range(CHUNKS):
        row = chunk * ROWS + tl.arange(0, ROWS)
        live = row < rows
        tiles = _tiles_of(
            row, live, window_ptr, window_columns, extra_ptr, extra_columns, WINDOW_LENGTHS,
            EXTRA_LENGTHS, TILE,
        )  # fmt: skip
        pieces = (tiles + size - 1) // size
        length = tl.where(one_each, pieces, tl.where(live, tiles + BEGIN, 0))
        end = units + tl.cumsum(length, 0)
        # Of rows end to end, those cuts that lie between the first tile's begin and the end.
        cut = (end + stride - 1) // stride - (end - tiles) // stride
        mine = tl.where(one_each, pieces, tl.where(live, cut, 0))
        tl.store(splits_ptr + 1 + row, splits + tl.cumsum(mine, 0), mask=live & writes)
        passed = live[None, :] & (end[None, :] <= start[:, None])
        first += tl.sum(passed.to(tl.int32), 1)
        first_at = tl.maximum(first_at, tl.max(tl.where(passed, end[None, :], 0), 1))
        passed = live[None, :] & (end[None, :] <= stop[:, None])
        last += tl.sum(passed.to(tl.int32), 1)
        last_at = tl.maximum(last_at, tl.max(tl.where(passed, end[None, :], 0), 1))
        units += tl.sum(length, 0)
        splits += tl.sum(mine, 0)
    tiles = _tiles_of(
        first, first < rows, window_ptr, window_columns, extra_ptr, extra_columns,
        WINDOW_LENGTHS, EXTRA_LENGTHS, TILE,
    )  # fmt: skip
    pieces = tl.maximum((tiles + size - 1) // size, 1)
    inside = start - first_at
    begin = tl.where(one_each, inside * tiles // pieces, tl.maximum(inside - BEGIN, 0))
    nth = tl.where(one_each, inside, part - (first_at + BEGIN) // stride)
    tiles = _tiles_of(
        last, last < rows, window_ptr, window_columns, extra_ptr, extra_columns, WINDOW_LENGTHS,
        EXTRA_LENGTHS, TILE,
    )  # fmt: skip
    pieces = tl.maximum((tiles + size - 1) // size, 1)
    inside = stop - last_at
    end = tl.where(one_each, inside * tiles // pieces, tl.maximum(inside - BEGIN, 0))
    end = tl.where(last < rows, end, 0)
    # Two cuts may lie before one and the same first tile.
    idle = (first >= rows) | ((first == last) & (begin == end))
    whole = end == 0
    last = tl.maximum(tl.where(whole, last - 1, last), 0)
    tiles = _tiles_of(
        last, last < rows, window_ptr, window_columns, extra_ptr, extra_columns, WINDOW_LENGTHS,
        EXTRA_LENGTHS, TILE,
    )  # fmt: skip
    end = tl.where(whole, tiles, end)
    alone, late = first == last, begin > 0
    first_cut = late | (alone & (end < tiles))
    last_cut = (end < tiles) | (alone & late)
    at = records_ptr + (kind * processors + part) * 8
    here = part < processors
    tl.store(at, tl.where(idle, rows, first), mask=here)
    tl.store(at + 1, tl.where(idle, rows, last), mask=here)
    tl.store(at + 2, tl.where(idle, 0, begin), mask=here)
    tl.store(at + 3, tl.where(idle, 0, end), mask=here)
    tl.store(at + 4, tl.where(idle | (begin == 0), 0, nth), mask=here)
    tl.store(at + 5, tl.where(idle, 0, first_cut.to(tl.int32)), mask=here)
    tl.store(at + 6, tl.where(idle, 0, last_cut.to(tl.int32)), mask=here)
    tl.store(at + 7, tl.zeros([PARTS], tl.int32), mask=here)


@triton.jit(do_not_specialize=["rows"])
def _kernel(
    records_ptr: tl.tensor, splits_ptr: tl.tensor, rows: tl.tensor, processors: tl.tensor,
    window_0: tl.tensor, window_columns_0: tl.tensor, extra_0: tl.tensor,
    extra_columns_0: tl.tensor, window_1: tl.tensor, window_columns_1: tl.tensor,
    extra_1: tl.tensor, extra_columns_1: tl.tensor, window_2: tl.tensor,
    window_columns_2: tl.tensor, extra_2: tl.tensor, extra_columns_2: tl.tensor,
    WINDOW_LENGTHS_0: tl.constexpr, EXTRA_LENGTHS_0: tl.constexpr, WINDOW_LENGTHS_1: tl.constexpr,
    EXTRA_LENGTHS_1: tl.constexpr, WINDOW_LENGTHS_2: tl.constexpr, EXTRA_LENGTHS_2: tl.constexpr,
    KINDS: tl.constexpr, TILE: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr, SIZES: tl.constexpr, BEGIN: tl.constexpr, TILE_COST: tl.constexpr,
    PART_COST: tl.constexpr,
) -> None:  # fmt: skip
    """Plan the kind of this program. A kernel takes no list of pointers: hence the repetition."""
    kind = tl.program_id(0)
    if kind == 0:
        _plan(
            kind, records_ptr, splits_ptr, rows, processors, window_0, window_columns_0, extra_0,
            extra_columns_0, WINDOW_LENGTHS_0, EXTRA_LENGTHS_0, TILE, CHUNKS, ROWS, PARTS, SIZES,
            BEGIN, TILE_COST, PART_COST,
        )  # fmt: skip
    if KINDS > 1:  # noqa: SIM102
        if kind == 1:
            _plan(
                kind, records_ptr, splits_ptr, rows, processors, window_1, window_columns_1,
                extra_1, extra_columns_1, WINDOW_LENGTHS_1, EXTRA_LENGTHS_1, TILE, CHUNKS, ROWS,
                PARTS, SIZES, BEGIN, TILE_COST, PART_COST,
            )  # fmt: skip
    if KINDS > 2:  # noqa: SIM102
        if kind == 2:
            _plan(
                kind, records_ptr, splits_ptr, rows, processors, window_2, window_columns_2,
                extra_2, extra_columns_2, WINDOW_LENGTHS_2, EXTRA_LENGTHS_2, TILE, CHUNKS, ROWS,
                PARTS, SIZES, BEGIN, TILE_COST, PART_COST,
            )  # fmt: skip


def plan_splits(
    q: torch.Tensor, counts: Sequence["KeyCounts"], processors: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return records and splits; see `jit_kernels.paged_attention.split_plans.plan_splits`."""
    rows, kinds = q.shape[0], len(counts)
    shape = (kinds, processors, RECORD_WORDS)
    records = torch.empty(shape, dtype=torch.int32, device=q.device)
    splits = torch.empty((kinds, rows + 1), dtype=torch.int32, device=q.device)
    arguments: list[torch.Tensor | int] = []
    given: dict[str, bool] = {}
    for nth in range(3):
        each = counts[min(nth, kinds - 1)]
        for name, lengths, columns in (
            ("WINDOW", each.lengths, each.columns),
            ("EXTRA", each.extra_lengths, each.extra_columns),
        ):
            # Where there are no lengths, any address will do.
            arguments += [splits if lengths is None else lengths, columns]
            given[f"{name}_LENGTHS_{nth}"] = lengths is not None
    _kernel[(kinds, triton.cdiv(processors, PARTS))](
        *(records, splits, rows, processors),
        *arguments,
        **given,
        KINDS=kinds,
        TILE=KEY_TILE,
        CHUNKS=triton.cdiv(rows, ROWS),
        ROWS=ROWS,
        PARTS=PARTS,
        SIZES=SIZES,
        BEGIN=BEGIN_TILES,
        TILE_COST=TILE_COST,
        PART_COST=PART_COST,
        num_warps=WARPS,
    )
    return records, splits
