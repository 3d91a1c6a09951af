"""Clients that never read: their connections end, those of slow readers do not."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import runtime.server.unread_replies as unread_replies
from runtime.server.unread_replies import LEAST_BYTES, UnreadReplies

STALL_S, SHORT_STALL_S, LOOK_S = 0.2, 0.06, 0.01


class Reader:
    """A connection whose client reads nothing unless the test says so."""

    def __init__(self, unread: int) -> None:
        self.unread = unread
        self.ended = asyncio.Event()

    def unread_bytes(self) -> int:
        return self.unread

    def give_up(self) -> None:
        self.ended.set()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the times be short."""
    monkeypatch.setattr(unread_replies, "STALL_S", STALL_S)
    monkeypatch.setattr(unread_replies, "SHORT_STALL_S", SHORT_STALL_S)
    monkeypatch.setattr(unread_replies, "_LOOK_S", LOOK_S)
    monkeypatch.setattr(unread_replies, "_TRIM_AFTER_S", LOOK_S)


async def seconds(wait: Awaitable[object]) -> float:
    clock = asyncio.get_running_loop().time
    begun = clock()
    await asyncio.wait_for(wait, 30)
    return clock() - begun


def played(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 60)

    asyncio.run(bounded())


@pytest.mark.usefixtures("soon")
def test_a_reply_that_is_never_read_ends_and_its_memory_is_given_back() -> None:
    async def scenario() -> None:
        trimmed = asyncio.Event()
        loop = asyncio.get_running_loop()
        unread = UnreadReplies(trim=lambda: loop.call_soon_threadsafe(trimmed.set))
        reader = Reader(1000)
        unread.add(reader)

        assert await seconds(reader.ended.wait()) >= STALL_S
        assert unread.ended == 1
        assert unread.total_bytes == 0
        await trimmed.wait()

    played(scenario)


@pytest.mark.usefixtures("soon")
def test_all_unread_replies_together_are_bounded() -> None:
    async def scenario() -> None:
        unread = UnreadReplies(most_bytes=1500)
        readers = [Reader(1000), Reader(1000)]
        for one in readers:
            unread.add(one)

        assert await seconds(readers[0].ended.wait()) < STALL_S
        await readers[1].ended.wait()

    played(scenario)


@pytest.mark.usefixtures("soon")
def test_a_slow_reader_is_waited_for() -> None:
    async def scenario() -> None:
        unread = UnreadReplies()
        slow, gone = Reader(100 * LEAST_BYTES), Reader(10)
        unread.add(slow)
        unread.add(gone)
        unread.remove(gone)
        for _ in range(8):
            await asyncio.sleep(STALL_S / 4)
            slow.unread -= LEAST_BYTES

        assert not slow.ended.is_set()
        assert not gone.ended.is_set()
        await slow.ended.wait()
        assert unread.ended == 1

    played(scenario)


@pytest.mark.usefixtures("soon")
def test_nobody_who_does_not_read_holds_up_the_end_of_a_server() -> None:
    async def scenario() -> None:
        unread = UnreadReplies()
        reader = Reader(10)
        unread.hurry([reader, Reader(0)])

        assert await seconds(reader.ended.wait()) < STALL_S

    played(scenario)
