"""Tests of runtime.lang.lines."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from runtime.lang.lines import LineCutter, lines

TEXT = 'data: "a\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1eü\rb"'


def cut(data: bytes, size: int) -> list[str]:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]

    async def read() -> list[str]:
        return [line async for line in lines(chunks())]

    return asyncio.run(read())


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_a_line_ends_at_a_newline_alone_wherever_chunks_end(size: int) -> None:
    data = f"{TEXT}\r\n\n{TEXT}\n\nlast".encode()

    assert cut(data, size) == [TEXT, "", TEXT, "", "last"]


def test_a_stream_of_nothing_has_one_empty_line() -> None:
    assert cut(b"", 1) == [""]


def test_bytes_that_are_no_text_spoil_no_other_line() -> None:
    assert LineCutter().take(b"\xff\na\n") == ["\ufffd", "a"]


def test_a_long_line_in_many_chunks_is_joined_once() -> None:
    cutter = LineCutter()
    for _ in range(100_000):
        assert cutter.take(b"x" * 100) == []

    [line] = cutter.take(b"\n")

    assert len(line) == 10_000_000
