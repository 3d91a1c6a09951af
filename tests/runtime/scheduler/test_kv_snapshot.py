"""A snapshot builds up what the events before it left."""

import numpy as np

from runtime.scheduler.kv_event_wire import Cleared, Event, Removed, Stored
from runtime.scheduler.kv_snapshot import StoredBlocks

TOKENS = np.arange(12, dtype=np.int32).reshape(3, 4)


def read(blocks: StoredBlocks, most: int = 100) -> dict[int, dict[int, tuple[int, ...]]]:
    """Return the tokens up to each block's end, by rank, as a reader of a snapshot adds them up."""
    known: dict[int, dict[int, tuple[int, ...]]] = {}
    for rank, events in blocks.batches(most):
        assert len(events) <= most + 1
        for event in events:
            if isinstance(event, Cleared):
                assert rank not in known
                known[rank] = {}
                continue
            assert isinstance(event, Stored)
            [hashed], above = event.hashes, ()
            if event.parent is not None:
                above = known[rank][event.parent]
            known[rank][hashed] = (*above, *event.tokens.ravel().tolist())
    return known


def test_blocks_come_after_the_ones_that_they_follow() -> None:
    blocks = StoredBlocks()
    blocks.apply([Stored([1, 2], None, TOKENS[:2]), Stored([3], 2, TOKENS[2:])])
    blocks.apply([Stored([5], None, TOKENS[2:])], rank=1)

    for most in (1, 2, 100):
        assert read(blocks, most) == {
            0: {1: (0, 1, 2, 3), 2: tuple(range(8)), 3: tuple(range(12))},
            1: {5: (8, 9, 10, 11)},
        }


def test_what_is_gone_is_left_out() -> None:
    blocks = StoredBlocks()
    events: list[Event] = [Stored([1, 2], None, TOKENS[:2]), Removed([2, 7])]
    blocks.apply(events)
    assert read(blocks) == {0: {1: (0, 1, 2, 3)}}

    blocks.apply([Stored([2], 1, TOKENS[1:2]), Cleared(), Stored([9], None, TOKENS[:1])])
    assert read(blocks) == {0: {9: (0, 1, 2, 3)}}
    blocks.apply([Cleared()])
    assert read(blocks) == {0: {}}
