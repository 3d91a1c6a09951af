"""Awaiting, in any event loop, what the programs' loop promises."""

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


async def arrival(future: "Future[Result]") -> Result:
    """Return the future's result; cancelling the wait leaves the future alone.

    Raises what the future raises.
    """
    await over(future)
    return future.result()


async def over(future: "Future[Any]") -> None:
    """Wait until a future is done, failed or not; cancelling the wait leaves it alone."""
    if not future.done():
        loop = asyncio.get_running_loop()
        come = loop.create_future()

        def tell() -> None:
            if not come.done():
                come.set_result(None)

        def hear(_: "Future[Any]") -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(tell)

        future.add_done_callback(hear)
        await come
