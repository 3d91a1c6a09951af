"""Tests of runtime.engine.remote_stream: one reader, elsewhere, who may leave at any time."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest

from runtime.engine.engine import Engine
from runtime.engine.remote_stream import RemoteStream
from runtime.errors import BadRequest
from tests.runtime.engine.counting import DEADLINE_S, counting_engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A running engine, for its thread."""
    with counting_engine(tmp_path_factory.mktemp("model")) as engine:
        yield engine


class Source:
    """A generator of the engine's loop that gives `items`, and then raises or waits for ever."""

    def __init__(self, engine: Engine, items: int, error: Exception | None = None) -> None:
        self._items = items
        self._error = error
        self.made = 0
        self.waiting = threading.Event()
        self.tidied = threading.Event()
        self.stream = RemoteStream(engine._thread, self._make)

    async def _make(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._items):
                self.made += 1
                yield number
            if self._error is not None:
                raise self._error
            self.waiting.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # tidying up may take a while
            self.tidied.set()


def test_nothing_is_made_before_it_is_read(engine: Engine) -> None:
    source = Source(engine, 3)
    stream = source.stream.read()

    assert source.made == 0
    assert [next(stream), next(stream), source.made] == [0, 1, 2]
    stream.close()
    assert source.tidied.wait(DEADLINE_S)


def test_what_the_source_raises_reaches_the_reader(engine: Engine) -> None:
    source = Source(engine, 1, BadRequest("no"))
    read: list[int] = []

    with pytest.raises(BadRequest, match="no"):
        read += list(source.stream.read())

    assert source.tidied.wait(DEADLINE_S)


def test_a_loop_reads_too_and_may_leave(engine: Engine) -> None:
    source = Source(engine, 3)

    async def read() -> list[int]:
        stream = source.stream.aread()
        items = [await anext(stream), await anext(stream)]
        await stream.aclose()
        return items

    assert asyncio.run(read()) == [0, 1]
    assert source.tidied.wait(DEADLINE_S)


def test_who_is_cancelled_while_waiting_leaves(engine: Engine) -> None:
    source = Source(engine, 0)

    async def read() -> None:
        stream = source.stream.aread()
        reading = asyncio.ensure_future(anext(stream))
        assert await asyncio.to_thread(source.waiting.wait, DEADLINE_S)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(read())
    assert source.tidied.wait(DEADLINE_S)


def test_a_loop_that_ends_while_somebody_waits_leaves(engine: Engine) -> None:
    source = Source(engine, 0)

    async def read() -> None:
        stream = source.stream.aread()
        reading = asyncio.ensure_future(anext(stream))
        assert await asyncio.to_thread(source.waiting.wait, DEADLINE_S)
        assert not reading.done()

    asyncio.run(read())
    assert source.tidied.wait(DEADLINE_S)
