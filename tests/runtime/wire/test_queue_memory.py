"""Where the memory of a queue comes from, and what its words and bytes hold."""

import errno
import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.errors import RuntimeFault
from runtime.wire.queue_memory import QueueMemory, _free_bytes, _reserve, allocate, padded


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders: one that stands for /dev/shm, and the private one."""
    first, second = tmp_path / "shm", tmp_path / "private"
    first.mkdir()
    second.mkdir()
    monkeypatch.setattr("runtime.wire.queue_memory._SHARED_MEMORY", str(first))
    return first, second


def test_the_memory_has_no_name_and_all_its_bytes(places: tuple[Path, Path]) -> None:
    with allocate(1 << 20, str(places[1])) as file:
        found = os.fstat(file.fileno())

        assert found.st_nlink == 0
        assert os.readlink(f"/proc/self/fd/{file.fileno()}").startswith(str(places[0]))
        assert found.st_size == 1 << 20
        assert found.st_blocks * 512 >= 1 << 20
        assert not [*places[0].iterdir(), *places[1].iterdir()]


def test_a_small_shared_memory_is_passed_over(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def free_bytes(place: str) -> int:
        return 100 if place == str(places[0]) else 1 << 30

    def unnamed_file(place: str, size: int) -> None:
        asked.append(f"{place} {size}")

    monkeypatch.setattr("runtime.wire.queue_memory._free_bytes", free_bytes)
    monkeypatch.setattr("runtime.wire.queue_memory._unnamed_file", unnamed_file)
    allocate(4096, str(places[1]))

    assert asked == [f"{places[1]} 4096"]


def test_a_limit_that_only_allocation_meets_is_found(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [0]

    def reserve_second(descriptor: int, size: int) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _reserve(descriptor, size)

    monkeypatch.setattr("runtime.wire.queue_memory._reserve", reserve_second)
    with allocate(4096, str(places[1])) as file:
        assert os.fstat(file.fileno()).st_size == 4096


def test_without_room_the_error_says_what_is_wanted_and_there_and_to_do(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_quota(descriptor: int, size: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr("runtime.wire.queue_memory._reserve", no_quota)
    monkeypatch.setattr(
        "runtime.wire.queue_memory._free_bytes",
        lambda place: 64 if place == str(places[0]) else None,
    )
    with pytest.raises(RuntimeFault) as raised:
        allocate(4096, str(places[1]))

    text = str(raised.value)
    assert "4096 bytes" in text
    assert f"{places[0]} has 64 bytes free" in text
    assert f"{places[1]}: {os.strerror(errno.EDQUOT)}" in text
    assert "--shm-size" in text
    assert "TMPDIR" in text


def test_a_folder_that_is_missing_is_passed_over(places: tuple[Path, Path]) -> None:
    places[0].rmdir()

    allocate(4096, str(places[1])).close()


def test_a_file_system_without_a_limit_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_bavail=0))
    assert _free_bytes("anywhere") is None

    found = SimpleNamespace(f_blocks=9, f_bavail=3, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    assert _free_bytes("anywhere") == 3 * 4096


def test_two_mappings_share_words_and_bytes_around_the_end(tmp_path: Path) -> None:
    rng = random.Random(1)
    one, file = QueueMemory.create(1000, 16, str(tmp_path))
    with file:
        other = QueueMemory(file.fileno())
    assert (other.size, other.readers) == (1000, 16)
    for _ in range(300):
        position, data = rng.randrange(1 << 60), rng.randbytes(rng.randrange(1001))
        one.put(position, memoryview(data))
        assert other.get(position, len(data)) == data
    one.put_length(8 * 125 * 7 + 992, 5)
    assert other.length(992) == 5
    for reader in range(16):
        one.set_read(reader, (1 << 63) + reader)
        one.set_sleeps(reader, 1)
        one.set_wanted(reader, 7 * reader)
    one.set_written(1 << 50)
    one.set_closed(15)
    one.fence()

    assert other.written == 1 << 50
    assert [other.read(r) for r in range(16)] == [(1 << 63) + r for r in range(16)]
    assert [other.wanted(r) for r in range(16)] == [7 * r for r in range(16)]
    assert all(other.sleeps(r) for r in range(16))
    assert [other.closed(r) for r in (None, *range(16))] == [False] * 16 + [True]
    # As the module's head says.
    words = other._words
    assert words[:4].tolist() == [int.from_bytes(b"umbraRNG", "little"), 1, 1000, 16]
    assert [words[8], words[16], words[33 + 16 * 15]] == [1 << 50, 0, 1]
    assert [words[32 + 16], words[40 + 16], words[41 + 16]] == [(1 << 63) + 1, 1, 7]
    one.close()
    one.close()
    other.close()


def test_bad_numbers_and_foreign_files_are_refused(tmp_path: Path) -> None:
    for readers in (0, 17):
        with pytest.raises(ValueError, match="1 to 16 readers"):
            QueueMemory.create(4096, readers, str(tmp_path))
    with pytest.raises(ValueError, match="no room for a message"):
        QueueMemory.create(8, 1, str(tmp_path))
    foreign = tmp_path / "foreign"
    foreign.write_bytes(bytes(8192))
    with foreign.open("r+b") as file, pytest.raises(RuntimeFault, match="no queue"):
        QueueMemory(file.fileno())


def test_sizes_are_whole_words() -> None:
    assert [padded(n) for n in (0, 1, 7, 8, 9)] == [0, 8, 8, 8, 16]
