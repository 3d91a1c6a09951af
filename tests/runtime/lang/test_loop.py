"""Tests of runtime.lang.loop."""

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from runtime.lang.loop import LoopThread


def test_coroutines_run_in_one_thread_of_their_own() -> None:
    loop = LoopThread()

    async def where() -> tuple[threading.Thread, bool]:
        return threading.current_thread(), loop.inside

    first, second = loop.submit(where()).result(60), loop.submit(where()).result(60)

    assert first == second
    assert first[0] is not threading.main_thread()
    assert first[1]
    assert not loop.inside


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_in_a_coroutine_is_its_own(error: BaseException) -> None:
    loop = LoopThread()

    async def leave() -> None:
        raise error

    async def stay() -> str:
        return "still there"

    futures: list[Future[Any]] = [loop.submit(leave()), loop.submit(stay())]

    with pytest.raises(type(error)):
        futures[0].result(60)
    assert futures[1].result(60) == "still there"


def test_cancelling_what_was_submitted_cancels_the_coroutine() -> None:
    loop, seen, started = LoopThread(), threading.Event(), threading.Event()

    async def for_ever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.set()

    future = loop.submit(for_ever())
    started.wait(60)
    future.cancel()

    assert seen.wait(60)
