"""Metadata whose lengths are lies is refused at once, and the library's own files pass."""

import struct
from pathlib import Path

import pytest

from runtime.errors import ConfigError
from runtime.gguf.header import MOST_ELEMENTS, check_header
from tests.testing.gguf_files import write_gguf

KEY = struct.pack("<Q", 1) + b"a"


def header(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def array(kind: int, count: int) -> bytes:
    return KEY + struct.pack("<IIQ", 9, kind, count)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no little-endian"),
        (header(0, 0, 1), "no little-endian"),
        (header(0, 0)[:-1], "cut off"),
        (header(1 << 40, 0), "tensors"),
        (header(0, 1 << 40), "keys"),
        (header(0, 1) + struct.pack("<Q", 1 << 62), "one string"),
        (header(0, 1) + struct.pack("<Q", 99) + b"a", "cut off"),
        (header(0, 1) + KEY + struct.pack("<I", 77), "type 77"),
        (header(0, 1) + array(0, 1 << 40), "elements"),
        (
            header(0, 2) + array(0, MOST_ELEMENTS // 2 + 1) + bytes(MOST_ELEMENTS // 2 + 1),
            "cut off",
        ),
        (header(0, 1) + array(8, 9), "cut off"),
        (header(0, 1) + array(9, 1) + struct.pack("<IQ", 9, 1) * 9, "array of arrays"),
    ],
)
def test_lengths_that_no_file_can_keep_are_refused(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(data)

    with pytest.raises(ConfigError, match=message):
        check_header(path)


def test_the_elements_of_all_arrays_are_counted_together(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    half = array(0, MOST_ELEMENTS // 2) + bytes(MOST_ELEMENTS // 2)

    path.write_bytes(header(0, 2) + half + half)
    check_header(path)
    path.write_bytes(header(0, 3) + half + half + array(0, 1) + b"a")
    with pytest.raises(ConfigError, match="elements"):
        check_header(path)


def test_files_of_the_library_pass(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf")

    check_header(tmp_path / "a.gguf")
