"""Asking again while whoever is asked is full."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from runtime.errors import QueueFull

# How long one that says it is full is asked again.
PATIENCE_S = 600.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0

Result = TypeVar("Result")


async def patiently(ask: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Return what `ask` returns; ask again while it raises QueueFull, which comes out at last.

    It comes out at once where the time that it tells to wait is longer than patience lasts.
    """
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + PATIENCE_S, FIRST_PAUSE_S
    while True:
        try:
            return await ask()
        except QueueFull as full:
            if loop.time() + full.retry_after_s > deadline:
                raise
            # Nobody asks sooner than told; together they do not ask at the same time.
            await asyncio.sleep(full.retry_after_s + random.uniform(0, pause_s))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
