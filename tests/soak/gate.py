"""Lets clients through one call at a time each, and can shut them all out for an idle moment."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Gate:
    """Open at first."""

    def __init__(self) -> None:
        self._inside = 0
        self._shut = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self) -> AsyncGenerator[None, None]:
        """Wait until the gate is open; be inside until the end of the block."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._shut)
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def shut(self) -> AsyncGenerator[None, None]:
        """Let nobody in and wait until nobody is inside, until the end of the block."""
        async with self._changed:
            self._shut = True
            await self._changed.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            async with self._changed:
                self._shut = False
                self._changed.notify_all()
