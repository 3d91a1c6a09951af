"""FlashMLA's split plans in plain Python: how ours are made, and what any of them must hold."""

import itertools
from collections.abc import Sequence

Record = list[int]


def ceil_div(x: int, y: int) -> int:
    """Return x / y rounded up."""
    return -(-x // y)


def planned(
    tiles: Sequence[int],
    processors: int,
    *,
    sizes: int,
    begin: int,
    tile_cost: int,
    part_cost: int,
    add_cost: int,
) -> tuple[list[Record], list[int]]:
    """Return (records, splits) of rows of so many tiles, at least one each.

    The last five are the constants of the kernel.
    """
    longest = max(tiles)
    choices = sorted(ceil_div(longest, pieces + 1) for pieces in range(sizes))

    def even_cost(size: int) -> int:
        pieces = [ceil_div(count, size) for count in tiles]
        if sum(pieces) > processors:
            return 1 << 30
        added = sum(count for count in pieces if count > 1)
        most = max(pieces)
        return tile_cost * size + (part_cost * most + add_cost * added if most > 1 else 0)

    even = min(choices, key=even_cost)
    apart = min(choices, key=lambda size: tile_cost * size + part_cost * ceil_div(longest, size))
    apart = max(apart, ceil_div(sum(tiles) + begin * len(tiles), processors))
    end_to_end = tile_cost * apart + part_cost * (ceil_div(longest, apart) + 1)
    end_to_end += add_cost * processors
    if even_cost(even) <= end_to_end:
        cuts = [
            (row, piece * count // ceil_div(count, even))
            for row, count in enumerate(tiles)
            for piece in range(ceil_div(count, even))
        ]
    else:
        cuts = _cuts_apart(tiles, begin, apart, processors)
    return _records(tiles, cuts, processors)


def _cuts_apart(
    tiles: Sequence[int], begin: int, apart: int, processors: int
) -> list[tuple[int, int]]:
    """Return (row, tile) where each processor starts; (B, 0) past the end."""
    places = [
        (row, tile) for row, count in enumerate(tiles) for tile in (*[0] * begin, *range(count))
    ]
    return [
        places[nth * apart] if nth * apart < len(places) else (len(tiles), 0)
        for nth in range(processors)
    ]


def _records(
    tiles: Sequence[int], cuts: list[tuple[int, int]], processors: int
) -> tuple[list[Record], list[int]]:
    """Return (records, splits) of processors that start at cuts, the first of all keys first."""
    rows = len(tiles)
    stops = [*cuts[1:], (rows, 0)]
    parts = [0] * rows
    records: list[Record] = []
    for start, stop in zip(cuts, stops, strict=True):
        if start == stop:
            records.append([rows, rows, 0, 0, 0, 0, 0, 0])
            continue
        first, last = start[0], stop[0] if stop[1] else stop[0] - 1
        end = stop[1] or tiles[last]
        records.append([first, last, start[1], end, parts[first], 0, 0, 0])
        for row in range(first, last + 1):
            parts[row] += 1
    records += [[rows, rows, 0, 0, 0, 0, 0, 0]] * (processors - len(records))
    for record in records:
        if record[0] < rows:
            record[5:7] = [int(parts[row] > 1) for row in record[:2]]
    splits = [sum(parts[:row]) for row in range(rows + 1)]
    return records, splits


def assert_reads_everything_once(
    records: Sequence[Sequence[int]], splits: Sequence[int], tiles: Sequence[int]
) -> None:
    """Follow a plan as FlashMLA's kernels do: every tile once, in order, under numbers in order."""
    rows = len(tiles)
    assert len(splits) == rows + 1
    assert splits[0] == 0
    read, results = [0] * rows, [0] * rows
    for first, last, begin, end, nth, first_cut, last_cut, *_ in records:
        if first >= rows:
            continue
        assert first <= last < rows, "rows of a processor"
        for row in range(first, last + 1):
            start = begin if row == first else 0
            stop = end if row == last else tiles[row]
            cut = first_cut if row == first else last_cut if row == last else 0
            assert start == read[row], f"row {row} goes on at {start}, {read[row]} tiles are read"
            assert start < stop <= tiles[row], f"row {row} of {tiles[row]} tiles: {start}..{stop}"
            read[row] = stop
            # A row that is not read in parts is finished at once, any other one by adding them up.
            assert bool(cut) == ((start, stop) != (0, tiles[row])), f"row {row}: read in parts?"
            assert not cut or (nth if row == first else 0) == results[row], f"row {row}: which part"
            results[row] += 1
        assert not first or read[first - 1] == tiles[first - 1], "rows in order"
    assert read == list(tiles)
    assert results == [after - at for at, after in itertools.pairwise(splits)]
    # The kernels keep results in room for so many.
    assert splits[-1] <= rows + len(records)
