"""The blocks in one server's cache, by its cache events."""

from collections.abc import Iterable, Sequence

from runtime.scheduler.kv_event_wire import AllBlocksCleared, Batch, BlockRemoved, BlockStored

__all__ = ["BlockIndex"]

# Blocks in a slower tier are still hits; there is one tier so far.
_DEVICE = "GPU"


class BlockIndex:
    """Hashes of the blocks stored now; a server has a set for each rank's cache.

    current  False: events are missing, so that what was known says nothing until a replay
             or a snapshot has filled the gap
    """

    def __init__(self) -> None:
        self.current = False
        self._ranks: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return sum(len(blocks) for blocks in self._ranks.values())

    def apply(self, batch: Batch) -> None:
        """Take in the events of a batch, in order."""
        blocks = self._ranks.setdefault(batch.data_parallel_rank, set())
        for event in batch.events:
            match event:
                case BlockStored():
                    if event.medium in (_DEVICE, None):
                        blocks.update(event.block_hashes)
                case BlockRemoved():
                    if event.medium in (_DEVICE, None):
                        blocks.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    blocks.clear()

    def replace(self, batches: Iterable[Batch]) -> None:
        """Forget everything, and take in a snapshot."""
        self.clear()
        for batch in batches:
            self.apply(batch)

    def clear(self) -> None:
        """Forget everything."""
        self._ranks.clear()

    def __contains__(self, block: object) -> bool:
        """Say whether a block is known to be stored, in any rank's cache."""
        return self.current and any(block in blocks for blocks in self._ranks.values())

    def leading(self, blocks: Sequence[int]) -> int:
        """Return how many of `blocks` are stored, from the first on, in one rank's cache."""
        if not self.current or not self._ranks:
            return 0
        return max(_leading(stored, blocks) for stored in self._ranks.values())


def _leading(stored: set[int], blocks: Sequence[int]) -> int:
    return next((k for k, block in enumerate(blocks) if block not in stored), len(blocks))
