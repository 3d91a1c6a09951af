"""A reader of cache events, who believes them."""

from runtime.scheduler.kv_event_wire import Cleared, Event, Removed, Stored


class Mirror:
    """Blocks that events have told of.

    known  hash -> tokens up to the end of that block
    """

    hash_key = None  # no reader computes hashes of its own

    def __init__(self) -> None:
        self.known: dict[int, tuple[int, ...]] = {}

    def publish(self, events: list[Event], *, time_s: float) -> None:
        """Read a batch: a block that goes was there, a parent is, a new one was not."""
        for event in events:
            match event:
                case Stored():
                    above = () if event.parent is None else self.known[event.parent]
                    for block, tokens in zip(event.hashes, event.tokens.tolist(), strict=True):
                        above = (*above, *tokens)
                        assert block not in self.known, "a block is stored twice"
                        self.known[block] = above
                case Removed():
                    for block in event.hashes:
                        del self.known[block]
                case Cleared():
                    self.known.clear()
