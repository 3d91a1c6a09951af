"""The blocks stored now, by all events so far: the snapshot for a reader that lost events.

A block costs its tokens, four bytes each, and some 200 bytes: 1.2 kB for a page of 256.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from runtime.scheduler.kv_event_wire import Cleared, Event, Removed, Stored

__all__ = ["StoredBlocks"]


class StoredBlocks:
    """All blocks by rank, in the order of their events: each one after its parent."""

    def __init__(self) -> None:
        self._ranks: dict[int, dict[int, tuple[int | None, np.ndarray]]] = {}

    def apply(self, events: Sequence[Event], rank: int = 0) -> None:
        """Take in the events of a batch, in order."""
        blocks = self._ranks.setdefault(rank, {})
        for event in events:
            match event:
                case Stored():
                    parents = [event.parent, *event.hashes[:-1]]
                    for block, parent, tokens in zip(
                        event.hashes, parents, event.tokens, strict=True
                    ):
                        # A copy: the event's array is a part of a larger one.
                        blocks[block] = parent, np.array(tokens, np.int32)
                case Removed():
                    for block in event.hashes:
                        blocks.pop(block, None)
                case Cleared():
                    blocks.clear()

    def batches(self, most: int) -> Iterator[tuple[int, list[Event]]]:
        """Yield (rank, events) that build up every rank's blocks from nothing.

        most  blocks in a batch; a rank without blocks has one batch, that it is cleared
        """
        for rank, blocks in self._ranks.items():
            events: list[Event] = [Cleared()]
            for block, (parent, tokens) in blocks.items():
                events.append(Stored([block], parent, tokens[None]))
                if len(events) > most:
                    yield rank, events
                    events = []
            if events:
                yield rank, events
