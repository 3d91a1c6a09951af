"""Files read into memory before their turn; of several ranks each reads some pieces of them.

Tensors are read through a mapping: its faults come one by one, and what a rank cuts out of them is
scattered. Ahead of that, files are read whole and in order, in large pieces, several at once.
"""

import contextlib
import os
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

__all__ = ["read_ahead"]

_PIECE_BYTES = 16 << 20
# Pieces that are read at once: what a disk with a queue needs.
_THREADS = 8
# Files that are read before their turn.
_AHEAD = 2


def read_ahead(files: Sequence[Path], *, turn: tuple[int, int] = (0, 1)) -> Generator[Path]:
    """Yield the files in order, and read those that come next meanwhile.

    turn  this rank, and how many load the same files at once: each reads every so manieth piece,
          and waits for its own

    What cannot be read is left to whoever opens the file, and what is in memory is not read again.
    """
    readers = ThreadPoolExecutor(_THREADS)
    try:
        under_way: deque[list[Future[None]]] = deque()
        for number, file in enumerate(files):
            for near in files[number + len(under_way) : number + _AHEAD + 1]:
                pieces = range(turn[0] * _PIECE_BYTES, _size(near), turn[1] * _PIECE_BYTES)
                under_way.append([readers.submit(_read, near, piece) for piece in pieces])
            wait(under_way.popleft())
            yield file
    finally:
        # A damaged file is told of at once, whatever was to be read behind it.
        readers.shutdown(cancel_futures=True)


def _size(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0


def _read(file: Path, start: int) -> None:
    """Read a piece, and forget it: the kernel keeps it."""
    with contextlib.suppress(OSError), file.open("rb", buffering=0) as opened:
        end = min(start + _PIECE_BYTES, _size(file))
        if _is_there(opened.fileno(), start) and _is_there(opened.fileno(), end - 1):
            return
        room = memoryview(bytearray(end - start))
        while start < end and (got := os.preadv(opened.fileno(), [room[: end - start]], start)):
            start += got


def _is_there(descriptor: int, at: int) -> bool:
    """Return whether the kernel has a byte of a file in memory."""
    try:
        return os.preadv(descriptor, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except OSError:
        return False
