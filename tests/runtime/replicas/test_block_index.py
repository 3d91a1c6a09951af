"""What the index holds after events, and that it holds nothing while it is not current."""

from typing import Any

from runtime.replicas.block_index import BlockIndex
from runtime.scheduler.kv_event_wire import AllBlocksCleared, Batch, BlockRemoved, BlockStored


def stored(*hashes: int, medium: str | None = "GPU") -> BlockStored:
    return BlockStored(list(hashes), None, [0] * 4 * len(hashes), 4, None, medium, None)


def filled(*batches: Batch) -> BlockIndex:
    index = BlockIndex()
    for batch in batches:
        index.apply(batch)
    index.current = True
    return index


def test_blocks_come_and_go_in_the_order_of_events() -> None:
    events: list[Any] = [
        stored(1, 2, 3),
        BlockRemoved([3], "GPU"),
        stored(4),
        BlockRemoved([9], "GPU"),
    ]
    index = filled(Batch(0.0, events, 0))

    assert [hashed in index for hashed in (1, 2, 3, 4)] == [True, True, False, True]
    assert len(index) == 3
    index.apply(Batch(0.0, [AllBlocksCleared(), stored(5)], 0))
    assert (len(index), 5 in index, 1 in index) == (1, True, False)


def test_a_prefix_counts_up_to_the_first_block_that_is_not_there() -> None:
    index = filled(Batch(0.0, [stored(*range(1, 11))], 0))

    for known in range(11):
        assert index.leading([*range(1, known + 1), *range(90, 95)]) == known
    assert index.leading([]) == 0


def test_each_rank_has_blocks_of_its_own_and_the_best_one_counts() -> None:
    index = filled(Batch(0.0, [stored(1, 2)], 0), Batch(0.0, [stored(1, 2, 3)], 1))

    assert index.leading([1, 2, 3, 4]) == 3
    index.apply(Batch(0.0, [BlockRemoved([2, 3], "GPU")], 1))
    assert index.leading([1, 2, 3, 4]) == 2
    index.apply(Batch(0.0, [AllBlocksCleared()], 0))
    assert (index.leading([1, 2]), 1 in index, 2 in index) == (1, True, False)


def test_a_slower_tier_is_not_the_device() -> None:
    index = filled(Batch(0.0, [stored(1), stored(2, medium="CPU"), BlockRemoved([1], "CPU")], 0))

    assert (1 in index, 2 in index) == (True, False)


def test_what_is_not_current_is_not_used_and_a_snapshot_replaces_it() -> None:
    index = filled(Batch(0.0, [stored(1, 2)], 0))
    index.current = False

    assert (index.leading([1, 2]), 1 in index) == (0, False)
    index.replace([Batch(0.0, [stored(2)], 0), Batch(0.0, [stored(7)], 3)])
    index.current = True
    assert [hashed in index for hashed in (1, 2, 7)] == [False, True, True]
