"""Long work cut into turns of the event loop, so that other events do not wait for all of it."""

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

__all__ = ["own_turn"]


class _Line:
    """Tasks in the order in which they came, of which each turn of the loop lets one go on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        future = self._loop.create_future()
        self._waiting.append(future)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._let_next_go)
        await future

    def _let_next_go(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                break
        if self._waiting:
            self._loop.call_soon(self._let_next_go)


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()


async def own_turn() -> None:
    """Return in a turn of the running loop in which no other caller of this goes on."""
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line(loop)
    await line.wait()
