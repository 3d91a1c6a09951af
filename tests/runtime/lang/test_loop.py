"""Tests of runtime.lang.loop."""

import asyncio
import threading

from runtime.lang.loop import LoopThread


def test_coroutines_run_in_one_thread_of_their_own() -> None:
    loop = LoopThread()

    async def where() -> tuple[threading.Thread, bool]:
        return threading.current_thread(), loop.inside

    first, second = loop.submit(where()).result(10), loop.submit(where()).result(10)

    assert first == second
    assert first[0] is not threading.main_thread()
    assert first[1]
    assert not loop.inside


def test_cancelling_what_was_submitted_cancels_the_coroutine() -> None:
    loop, seen, started = LoopThread(), threading.Event(), threading.Event()

    async def for_ever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.set()

    future = loop.submit(for_ever())
    started.wait(10)
    future.cancel()

    assert seen.wait(10)
