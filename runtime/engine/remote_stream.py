"""A stream that is made in the engine's loop and read somewhere else, item by item."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Generic, TypeVar

from runtime.engine.thread import EngineThread

Item = TypeVar("Item")


class RemoteStream(Generic[Item]):
    """Reads an async generator of the engine's loop; has one reader.

    Nothing is made before it is asked for. Who stops reading, in whichever way, closes it.
    """

    def __init__(
        self, thread: EngineThread, make: Callable[[], AsyncGenerator[Item, None]]
    ) -> None:
        self._thread = thread
        self._make = make
        self._items: AsyncGenerator[Item, None] | None = None
        self._reading: asyncio.Task[Any] | None = None
        self._closing: asyncio.Task[None] | None = None

    def read(self) -> Generator[Item]:
        """Yield the items in a thread. Raises what the generator raises, or Unavailable."""
        try:
            while (item := self._thread.wait(self._thread.submit(self._next))) is not None:
                yield item
        finally:
            self._thread.tell(self._close)

    async def aread(self) -> AsyncGenerator[Item, None]:
        """Yield the items in any event loop. Raises what the generator raises, or Unavailable."""
        try:
            while (item := await self._thread.arrival(self._thread.submit(self._next))) is not None:
                yield item
        finally:
            self._thread.tell(self._close)

    # --- in the engine's loop

    async def _next(self) -> Item | None:
        if self._items is None:
            self._items = self._make()
            self._thread.opened(self)
        self._reading = asyncio.current_task()
        item = None
        try:
            item = await anext(self._items, None)
        finally:
            self._reading = None
            if item is None:
                self._thread.ended(self)
        return item

    def _close(self) -> None:
        self._closing = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        self._thread.ended(self)
        # A generator that is waiting for its next item cannot be closed.
        if self._reading is not None:
            if not self._reading.cancelling():  # a second time would cut its tidying up short
                self._reading.cancel()
            await asyncio.wait([self._reading])
        if self._items is not None:
            await self._items.aclose()
