"""Files come in order, whatever of them can be read, and each rank reads its own pieces."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from layers.weights.read_ahead import read_ahead

PIECE = 1000


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Return what is read, (file, first, bytes), though all of it is in memory."""
    read: list[tuple[str, int, int]] = []
    preadv = os.preadv

    def noted(descriptor: int, buffers: Sequence[bytearray], offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        got = preadv(descriptor, buffers, offset)
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        read.append((name, offset, got))
        return got

    monkeypatch.setattr("layers.weights.read_ahead._PIECE_BYTES", PIECE)
    monkeypatch.setattr(os, "preadv", noted)
    return read


def files(folder: Path, *sizes: int) -> list[Path]:
    made = [folder / f"{number}" for number in range(len(sizes))]
    for file, size in zip(made, sizes, strict=True):
        file.write_bytes(bytes(size))
    return made


def test_each_rank_reads_its_pieces_before_a_file_has_its_turn(
    tmp_path: Path, pieces: list[tuple[str, int, int]]
) -> None:
    made = files(tmp_path, 2500, 0, 999, 1000, 1001)
    for number, file in enumerate(read_ahead(made, turn=(1, 2))):
        assert file == made[number]
        if number == 0:
            assert ("0", 1000, 1000) in pieces
    first = [*pieces]
    pieces.clear()
    assert [*read_ahead(made, turn=(0, 2))] == made

    assert sorted(first) == [("0", 1000, 1000), ("4", 1000, 1)]
    others = [("0", 0, 1000), ("0", 2000, 500), ("2", 0, 999), ("3", 0, 1000), ("4", 0, 1000)]
    assert sorted(pieces) == others


def test_what_comes_next_is_read_meanwhile(
    tmp_path: Path, pieces: list[tuple[str, int, int]]
) -> None:
    made = files(tmp_path, 10, 20, 30, 40, 50)
    each = read_ahead(made)
    next(each)
    next(each)
    while len(pieces) < 4:
        time.sleep(0.001)
    each.close()

    assert sorted(pieces) == [("0", 0, 10), ("1", 0, 20), ("2", 0, 30), ("3", 0, 40)]


def test_nothing_is_read_any_more_for_a_load_that_failed(
    tmp_path: Path, pieces: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layers.weights.read_ahead._THREADS", 1)
    each = read_ahead(files(tmp_path, 10, 500 * PIECE, 500 * PIECE))
    next(each)
    each.close()

    assert len(pieces) < 500


def test_what_is_in_memory_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, sizes = files(tmp_path, 5000), list[int]()
    made[0].read_bytes()
    preadv = os.preadv

    def noted(descriptor: int, buffers: Sequence[bytearray], offset: int, flags: int = 0) -> int:
        got = preadv(descriptor, buffers, offset) if flags else 0
        sizes.append(got if flags else -1)
        return got

    monkeypatch.setattr(os, "preadv", noted)
    assert [*read_ahead(made)] == made
    assert sizes == [1, 1]


def test_a_file_that_is_gone_is_left_to_whoever_opens_it(tmp_path: Path) -> None:
    made = [*files(tmp_path, 10), tmp_path / "gone"]
    assert [*read_ahead(made)] == made
