"""The bound of a loader: a plain parallel reader of the same bytes, which keeps none of them."""

import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.loading.files import shards_of

__all__ = ["loaded_ranges", "plain_read"]

_PIECE_BYTES = 16 << 20
_THREADS = 8
_DRAFT = "mtp."


def loaded_ranges(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the ranges [start, end) of a file's bytes that a network keeps, neighbours joined."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    spans = sorted(
        (*entry["data_offsets"], name) for name, entry in header.items() if name != "__metadata__"
    )
    first = last = 0
    for start, end, name in spans:
        if name.startswith(_DRAFT):
            continue
        if start != last:
            if last > first:
                yield 8 + size + first, 8 + size + last
            first = start
        last = end
    if last > first:
        yield 8 + size + first, 8 + size + last


def plain_read(folder: Path) -> tuple[int, float]:
    """Read all that a network keeps, eight pieces at once; return the bytes and the seconds."""
    pieces = [
        (path, at, min(_PIECE_BYTES, end - at))
        for path in shards_of(folder)
        for start, end in loaded_ranges(path)
        for at in range(start, end, _PIECE_BYTES)
    ]
    own = threading.local()

    def read(piece: tuple[Path, int, int]) -> int:
        path, at, size = piece
        if not hasattr(own, "buffer"):
            own.buffer = bytearray(_PIECE_BYTES)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.preadv(descriptor, [memoryview(own.buffer)[:size]], at)
        finally:
            os.close(descriptor)

    began = time.monotonic()
    with ThreadPoolExecutor(_THREADS) as threads:
        total = sum(threads.map(read, pieces))
    return total, time.monotonic() - began
