"""What the metadata of a GGUF file would take to read, from its lengths alone.

The library makes Python objects of each element, as many as the file says there are, and follows
arrays in arrays by recursion.

Layout, little-endian: "GGUF", uint32 version, uint64 tensors, uint64 keys; of each key: its name,
uint32 type, value. Strings are a uint64 length and bytes; arrays are a uint32 type, a uint64 length
and values. Source: the specification of GGUF, versions 2 and 3.
"""

import struct
from pathlib import Path
from typing import BinaryIO

from runtime.errors import ConfigError

__all__ = ["check_header"]

MOST_KEYS = 1 << 12
MOST_TENSORS = 1 << 16
# Of all arrays together. A vocabulary of 256 K with its kinds, scores and merges has a million.
MOST_ELEMENTS = 1 << 22
MOST_STRING_BYTES = 1 << 24
_STRING, _ARRAY = 8, 9
# Bytes of a value by its type.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def check_header(path: Path) -> None:
    """Raise ConfigError for metadata that is cut off or absurd; OSError where it is not read."""
    with path.open("rb") as file:
        walk = _Walk(path, file)
        if file.read(4) != b"GGUF" or walk.number("<I") not in (2, 3):
            raise walk.fault("it is no little-endian GGUF of version 2 or 3")
        walk.bounded(walk.number("<Q"), MOST_TENSORS, "tensors")
        for _ in range(walk.bounded(walk.number("<Q"), MOST_KEYS, "keys")):
            walk.string()
            walk.value(walk.number("<I"))


class _Walk:
    """A position in the metadata."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = path.stat().st_size
        self._elements = 0

    def fault(self, what: str) -> ConfigError:
        """Return the refusal of this file."""
        return ConfigError(f"--model-path {self._path} cannot be read as GGUF: {what}")

    def number(self, form: str) -> int:
        """Read an integer."""
        size = struct.calcsize(form)
        data = self._file.read(size)
        if len(data) < size:
            raise self.fault("its metadata is cut off")
        return struct.unpack(form, data)[0]

    def bounded(self, count: int, most: int, what: str) -> int:
        """Return a count that is not beyond its bound."""
        if count > most:
            raise self.fault(f"it has {count} {what}, at most {most} are read")
        return count

    def string(self) -> None:
        """Pass over a string."""
        self._skip(self.bounded(self.number("<Q"), MOST_STRING_BYTES, "bytes in one string"))

    def value(self, kind: int) -> None:
        """Pass over a value."""
        if kind == _STRING:
            self.string()
        elif kind == _ARRAY:
            kind, count = self.number("<I"), self.number("<Q")
            self._elements = self.bounded(self._elements + count, MOST_ELEMENTS, "elements")
            if kind == _STRING:
                for _ in range(count):
                    self.string()
            else:
                self._skip(self._size_of(kind) * count)
        else:
            self._skip(self._size_of(kind))

    def _size_of(self, kind: int) -> int:
        if kind == _ARRAY:
            raise self.fault("it has an array of arrays")
        if kind not in _SIZES:
            raise self.fault(f"it has a value of type {kind}")
        return _SIZES[kind]

    def _skip(self, size: int) -> None:
        if self._file.tell() + size > self._size:
            raise self.fault("its metadata is cut off")
        self._file.seek(size, 1)
