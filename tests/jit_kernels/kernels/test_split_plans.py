"""Split plans against those in plain Python, and against what FlashMLA's kernels assume."""

import itertools
import random

import pytest
import torch
from torch import Tensor

from jit_kernels.paged_attention import cuda_splits_backend
from jit_kernels.paged_attention.split_plans import KeyCounts
from tests.testing.split_plans import assert_reads_everything_once, planned

# Tiles of the rows: one or all alike, a long one among short ones, many sizes, more rows than
# processors, and rows of one tile.
ROWS = {
    "one short": [1],
    "one of the window": [2],
    "one of the chosen": [10],
    "one long": [112],
    "one of more tiles than sizes": [1300],
    "few": [10] * 3,
    "few long": [112] * 3,
    "a long one": [3, 112, 3, 3],
    "even": [10] * 64,
    "window only": [2] * 64,
    "uneven for one each": [130] * 48,
    "any": [random.Random(1).randint(1, 130) for _ in range(37)],
    "any and more": [random.Random(2).randint(1, 40) for _ in range(128)],
    "more than processors": [10] * 133,
    "single tiles": [1] * 200,
    "many and a long one": [2] * 150 + [120] + [3] * 49,
    "as many as there may be": [random.Random(4).randint(1, 130) for _ in range(512)],
}
PROCESSORS = [7, 132]
pytestmark = pytest.mark.gpu


def constants() -> dict[str, int]:
    """Return what the plain planner must know of the kernel."""
    return {
        "sizes": 64,
        "begin": cuda_splits_backend.BEGIN_TILES,
        "tile_cost": cuda_splits_backend.TILE_COST,
        "part_cost": cuda_splits_backend.PART_COST,
        "add_cost": cuda_splits_backend.ADD_COST,
    }


def counts_of(tiles: list[int], *, lengths: bool = True) -> KeyCounts:
    """Return keys of a window of two tiles or fewer, and of others, that make so many tiles."""
    if not lengths:
        assert len(set(tiles)) == 1
        return KeyCounts(128, None, 64 * (tiles[0] - 2), None)
    # The shortest and the longest of lengths that make a tile, in turn.
    window = [0 if count == 1 else 65 + 63 * (row % 2) for row, count in enumerate(tiles)]
    more = [max(0, count - 2) for count in tiles]
    more = [64 * count - 63 * (row % 2) if count else 0 for row, count in enumerate(more)]
    return KeyCounts(128, torch.tensor(window).int(), 64 * max(tiles), torch.tensor(more).int())


def plans_of(kinds: list[KeyCounts], rows: int, processors: int) -> tuple[Tensor, Tensor]:
    """Return records and splits."""
    plans = cuda_splits_backend.plan_splits(torch.zeros(rows, 1), kinds, processors)
    assert plans is not None
    return plans


def test_tiles_are_counted_as_the_attention_kernel_does() -> None:
    window = torch.tensor([0, 1, 64, 65, 128]).int()
    extra = torch.tensor([0, 64, 129, 0, 640]).int()
    kinds = [KeyCounts(128, window), KeyCounts(128, window, 640, extra), KeyCounts(128, None)]

    records, splits = plans_of(kinds, 5, 5)

    for kind, tiles in enumerate(([1, 1, 1, 2, 2], [1, 2, 4, 2, 12], [2] * 5)):
        got = records[kind].tolist(), splits[kind].tolist()
        assert_reads_everything_once(*got, tiles)


@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("name", list(ROWS))
def test_a_plan_is_the_one_in_plain_python(name: str, processors: int) -> None:
    tiles = ROWS[name]

    records, splits = plans_of([counts_of(tiles)], len(tiles), processors)

    got = records[0].tolist(), splits[0].tolist()
    assert_reads_everything_once(*got, tiles)
    assert got == planned(tiles, processors, **constants())


def test_plans_of_three_kinds_are_those_of_each_alone() -> None:
    several = [[2] * 16, [random.Random(3).randint(2, 10) for _ in range(16)], [112] + [3] * 15]
    kinds = [counts_of(tiles, lengths=len(set(tiles)) > 1) for tiles in several]
    assert kinds[0].lengths is None

    records, splits = plans_of(kinds, 16, 132)

    for kind, tiles in enumerate(several):
        want = planned(tiles, 132, **constants())
        assert (records[kind].tolist(), splits[kind].tolist()) == want


@pytest.mark.parametrize("seed", range(3))
def test_any_rows_are_read_once(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(3):
        rows, processors = dice.randint(1, 140), dice.choice([2, 7, 66, 132, 148])
        most = dice.choice([1, 3, 12, 200])
        tiles = [dice.randint(1, most) for _ in range(rows)]

        records, splits = plans_of([counts_of(tiles)], rows, processors)

        got = records[0].tolist(), splits[0].tolist()
        assert_reads_everything_once(*got, tiles)
        assert got == planned(tiles, processors, **constants())


def test_a_long_row_is_cut_into_few_parts_and_even_rows_evenly() -> None:
    def parts(tiles: list[int]) -> list[int]:
        splits = plans_of([counts_of(tiles)], len(tiles), 132)[1][0].tolist()
        return [after - at for at, after in itertools.pairwise(splits)]

    assert 20 <= parts([112])[0] <= 40
    assert parts([10]) == [10]
    assert set(parts([10] * 64)) == {2}
    assert set(parts([2] * 64)) == {1}


def test_a_graph_plans_for_the_lengths_of_its_replay() -> None:
    kinds = [KeyCounts(128, None), KeyCounts(128, None, 8192, torch.zeros(40).int())]
    lengths = kinds[1].extra_lengths
    assert lengths is not None
    plans_of(kinds, 40, 132)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        records, splits = plans_of(kinds, 40, 132)

    for longest in (8193, 65, 1):
        lengths.random_(0, longest)
        graph.replay()

        tiles = [2 + -(-length // 64) for length in lengths.tolist()]
        got = records[1].tolist(), splits[1].tolist()
        assert_reads_everything_once(*got, tiles)
        assert got == planned(tiles, 132, **constants())


def test_more_rows_are_left_to_the_vendor() -> None:
    assert cuda_splits_backend.plan_splits(torch.zeros(513, 1), [KeyCounts(128, None)], 132) is None
