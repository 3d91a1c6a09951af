"""Clients that do not read their replies: bounds on the time and the memory that they take.

What a client does not read stays in its connection's write buffer, and the rest of its reply, or
its request's output, in this process. Such a connection is closed once it takes too little in
`STALL_S`, or in `SHORT_STALL_S` while all of them together hold more than `MOST_UNREAD_BYTES`. The
end of a connection ends its request.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from runtime.heap import trim_heap

__all__ = ["Reader", "UnreadReplies"]

logger = logging.getLogger("umbra.server")

STALL_S = 30.0
SHORT_STALL_S = 2.0
# Taken in that time, more counts as reading: 0.5 KB/s.
LEAST_BYTES = 1 << 14
MOST_UNREAD_BYTES = 1 << 28
_LOOK_S = 0.5
_TRIM_AFTER_S = 1.0


class Reader(Protocol):
    """A connection with something to write."""

    def unread_bytes(self) -> int:
        """Return how much is in its write buffer, and the memory of what is still to come."""
        ...

    def give_up(self) -> None:
        """Close it at once, whatever is still to be written."""
        ...


@dataclass(slots=True)
class _Mark:
    """When a connection was last seen to be read from, and what was unread then."""

    at_s: float
    unread_bytes: int


class UnreadReplies:
    """Connections whose write buffers are full; belongs to one event loop.

    most_bytes  that all of them may hold
    ended       connections that were closed because their clients did not read
    """

    def __init__(
        self, *, most_bytes: int = MOST_UNREAD_BYTES, trim: Callable[[], object] = trim_heap
    ) -> None:
        self.ended = 0
        self._most_bytes = most_bytes
        self._trim = trim
        self._marks: dict[Reader, _Mark] = {}
        self._hurry = False
        self._look_soon: asyncio.TimerHandle | None = None
        self._trim_soon: asyncio.TimerHandle | None = None

    @property
    def total_bytes(self) -> int:
        """What is in all full write buffers."""
        return sum(reader.unread_bytes() for reader in self._marks)

    def hurry(self, readers: Iterable[Reader]) -> None:
        """Wait `SHORT_STALL_S` for each from now on: the server is to end.

        readers  all connections: of those, too, that have little to read
        """
        self._hurry = True
        for reader in readers:
            if reader not in self._marks and reader.unread_bytes():
                self.add(reader)

    def add(self, reader: Reader) -> None:
        """Note that a connection's buffer is full."""
        loop = asyncio.get_running_loop()
        self._marks[reader] = _Mark(loop.time(), reader.unread_bytes())
        if self._look_soon is None:
            self._look_soon = loop.call_later(_LOOK_S, self._look)

    def remove(self, reader: Reader, *, big: bool = False) -> None:
        """Note that a connection's buffer has room again, or that it is closed.

        big  it held much: its memory is given back to the system soon
        """
        self._marks.pop(reader, None)
        if big and self._trim_soon is None:
            loop = asyncio.get_running_loop()
            self._trim_soon = loop.call_later(_TRIM_AFTER_S, self._give_back)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        short = self._hurry or self.total_bytes > self._most_bytes
        limit_s = SHORT_STALL_S if short else STALL_S
        for reader, mark in list(self._marks.items()):
            unread = reader.unread_bytes()
            if mark.unread_bytes - unread >= LEAST_BYTES:
                self._marks[reader] = _Mark(now_s, unread)
            elif now_s - mark.at_s > limit_s:
                self._end(reader, unread)
        self._look_soon = loop.call_later(_LOOK_S, self._look) if self._marks else None

    def _end(self, reader: Reader, unread: int) -> None:
        logger.warning("closed a connection whose client does not read: %d bytes unread", unread)
        self.ended += 1
        reader.give_up()
        self.remove(reader, big=True)

    def _give_back(self) -> None:
        self._trim_soon = None
        # It walks the heap, for tens of milliseconds if that is large; without the interpreter.
        asyncio.get_running_loop().run_in_executor(None, self._trim)
