"""Lines of ranks come whole and in order, whichever threads write and whenever one reads."""

import os
import threading
from collections.abc import Iterator

import pytest

from runtime.profile_messages import Profiled
from runtime.rank_memory import RankMemory
from runtime.wire.rank_line import RankLine, RankLineReader, RankLineWriter

LIMIT_S = 60.0


@pytest.fixture
def ends() -> Iterator[tuple[RankLineWriter, RankLineReader]]:
    """Both ends of one pipe."""
    read, write = os.pipe()
    reader = RankLineReader(read)
    yield RankLineWriter(write), reader
    reader.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
    os.close(write)


def test_notes_and_beats_come_as_they_were_written(
    ends: tuple[RankLineWriter, RankLineReader],
) -> None:
    writer, reader = ends
    memory = RankMemory(1, 2, 3, 4, 5, 6, 7)
    answer = Profiled(3, True, "two\nlines", "/traces/x", ["/traces/x"])
    assert reader.read() == []

    writer.write()
    writer.write(memory)
    writer.tracing = lambda: True
    writer.write(answer)

    assert reader.read() == [RankLine(), RankLine(False, memory), RankLine(True, answer)]
    assert reader.read() == []


def test_a_line_longer_than_a_pipe_is_not_torn_by_beats(
    ends: tuple[RankLineWriter, RankLineReader],
) -> None:
    writer, reader = ends
    long = Profiled(1, False, "x" * (1 << 18))
    threads = [
        threading.Thread(target=writer.write, args=(note,), daemon=True)
        for note in (long, None, None)
    ]
    for thread in threads:
        thread.start()

    lines: list[RankLine] = []
    while len(lines) < len(threads):
        lines += reader.read()

    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(line.note is None for line in lines) == [False, True, True]
    assert long in [line.note for line in lines]
