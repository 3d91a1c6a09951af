"""Tests of runtime.tokenizer.threads."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

from runtime.errors import Unavailable
from runtime.tokenizer.threads import LONG_CHARS, TokeniserThreads


def test_no_short_text_waits_for_long_ones() -> None:
    async def test() -> None:
        threads, go = TokeniserThreads(), threading.Event()
        waits = asyncio.gather(*(threads.run(go.wait, chars=LONG_CHARS) for _ in range(8)))
        await asyncio.sleep(0)

        assert await threads.run(lambda: "ids", chars=LONG_CHARS - 1) == "ids"
        assert not waits.done()

        go.set()
        assert await waits == [True] * 8
        threads.close()

    asyncio.run(test())


def test_work_sees_the_context_of_its_caller() -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")

    async def test() -> None:
        threads = TokeniserThreads()
        name.set("somebody")
        assert await threads.run(name.get, chars=0) == "somebody"
        threads.close()

    asyncio.run(test())


@pytest.mark.parametrize("chars", [0, LONG_CHARS])
def test_closing_does_not_wait_for_what_is_under_way_and_cancels_the_rest(chars: int) -> None:
    async def test() -> None:
        threads, go = TokeniserThreads(), threading.Event()
        works = [
            asyncio.ensure_future(threads.run(lambda: go.wait(5.0), chars=chars)) for _ in range(9)
        ]
        await asyncio.sleep(0)
        threads.close()
        go.set()

        first, *_, last = await asyncio.gather(*works, return_exceptions=True)
        assert first is True
        assert isinstance(last, asyncio.CancelledError)

    asyncio.run(test())


@pytest.mark.parametrize("chars", [0, LONG_CHARS])
def test_closed_threads_take_no_more(chars: int) -> None:
    async def test() -> None:
        threads = TokeniserThreads()
        threads.close()

        with pytest.raises(Unavailable, match="shutting down"):
            await threads.run(lambda: None, chars=chars)

    asyncio.run(test())
