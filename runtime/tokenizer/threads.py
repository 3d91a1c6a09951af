"""Threads that tokenise: a short text never waits for a long one."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from runtime.errors import Unavailable

# Tokenising more takes longer than a short prompt should wait for.
LONG_CHARS = 1 << 17

_Result = TypeVar("_Result")


class TokeniserThreads:
    """Two pools of threads: for short texts, and for long ones."""

    def __init__(self) -> None:
        count = min(4, os.cpu_count() or 1)
        self._short = ThreadPoolExecutor(count, "tokenise")
        self._long = ThreadPoolExecutor(max(1, count // 2), "tokenise-long")

    async def run(self, work: Callable[[], _Result], *, chars: int) -> _Result:
        """Return what `work` returns, which tokenises a text of so many characters.

        It runs in the context of the caller. Raises what `work` raises, and Unavailable once the
        threads are given back.
        """
        threads = self._short if chars < LONG_CHARS else self._long
        work = partial(copy_context().run, work)
        try:
            working = asyncio.get_running_loop().run_in_executor(threads, work)
        except RuntimeError:
            raise Unavailable("the server is shutting down") from None
        return await working

    def close(self) -> None:
        """Give the threads back; what waits for one is cancelled."""
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)
