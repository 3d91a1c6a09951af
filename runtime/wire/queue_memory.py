"""Memory of a queue: a file without a name that several processes map, and its layout.

    word 0, 1, 2, 3     magic, layout version, bytes of data, readers
    word 8, 16          written; 1 once the writer has closed its end
    word 32 + 16 r      of reader r: read, closed; one cache line later: sleeps, wanted
    byte 4096           data: messages, each a word with its length, then its bytes, padded to 8

Words are 8 bytes, aligned, in the host's byte order. `written` and `read` count bytes since the
queue was made; position p of that count is byte p modulo the size. A message may wrap around.
"""

import contextlib
import io
import mmap
import os
import tempfile
import threading

from runtime.errors import RuntimeFault

__all__ = ["LENGTH_BYTES", "MAX_READERS", "QueueMemory", "allocate", "padded"]

MAX_READERS = 16
LENGTH_BYTES = 8
_SHARED_MEMORY = "/dev/shm"
_HEADER_BYTES = 4096
_MAGIC = int.from_bytes(b"umbraRNG", "little")
_LAYOUT = 1
_WRITTEN, _WRITER_CLOSED = 8, 16
_FIRST_READER, _READER_WORDS = 32, 16
_READ, _READER_CLOSED, _SLEEPS, _WANTED = 0, 1, 8, 9


def padded(count: int) -> int:
    """Round a number of bytes up to whole words."""
    return -(-count // 8) * 8


def allocate(wanted_bytes: int, folder: str) -> io.FileIO:
    """Return a file of `wanted_bytes` that has no name, so that it is freed with its last user.

    It is in /dev/shm, or in `folder` where that is too small. All its bytes exist: a sparse file
    would kill a process that writes to it when there is no more room. Raises RuntimeFault when
    neither place has room.
    """
    refusals: list[str] = []
    for place in (_SHARED_MEMORY, folder):
        try:
            free = _free_bytes(place)
            if free is None or free >= wanted_bytes:
                return _unnamed_file(place, wanted_bytes)
            refusals.append(f"{place} has {free} bytes free")
        except OSError as fault:
            refusals.append(f"{place}: {fault.strerror or fault}")
    raise RuntimeFault(
        f"no room for {wanted_bytes} bytes of shared memory: {'; '.join(refusals)}; make /dev/shm "
        "larger (docker run --shm-size=1g) or set TMPDIR to a folder with room"
    )


def _unnamed_file(place: str, size: int) -> io.FileIO:
    with contextlib.ExitStack() as undo:
        # Without a buffer it is a FileIO, of mode 0600 as long as it has a name at all.
        file = undo.enter_context(tempfile.TemporaryFile(buffering=0, dir=place))
        _reserve(file.fileno(), size)
        undo.pop_all()
        return file


def _free_bytes(place: str) -> int | None:
    """Return the free bytes of a file system; None where it has no limit."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def _reserve(descriptor: int, size: int) -> None:
    os.posix_fallocate(descriptor, 0, size)


class QueueMemory:
    """One process's mapping of a queue. Belongs to one thread.

    size     bytes of data
    readers  number of readers
    """

    def __init__(self, descriptor: int) -> None:
        """Map a queue. Raises RuntimeFault when the file is none of this layout."""
        self._map = mmap.mmap(descriptor, 0)
        self._whole = memoryview(self._map)
        # Stores and loads of items of this view are single, aligned accesses of 8 bytes;
        # struct.pack_into("<Q") goes byte by byte, and a reader could see half a counter.
        self._words = self._whole[:_HEADER_BYTES].cast("Q")
        self._data = self._whole[_HEADER_BYTES:]
        self._lengths = self._data.cast("Q")
        self._lock = threading.Lock()
        self._lock.acquire()
        magic, layout, self.size, self.readers = self._words[:4]
        if (magic, layout, self.size) != (_MAGIC, _LAYOUT, len(self._data)):
            self.close()
            raise RuntimeFault(f"the shared memory is no queue of layout {_LAYOUT}: {layout}")

    @classmethod
    def create(cls, size: int, readers: int, folder: str) -> tuple["QueueMemory", io.FileIO]:
        """Make an empty queue; return it and its file, which other processes may map.

        size     bytes of data, rounded up to 8
        readers  1 to 16
        folder   where the file goes when /dev/shm is too small
        Raises ValueError for bad numbers, RuntimeFault when there is no room.
        """
        if not 1 <= readers <= MAX_READERS:
            raise ValueError(f"a queue has 1 to {MAX_READERS} readers, not {readers}")
        if size <= LENGTH_BYTES:
            raise ValueError(f"a queue of {size} bytes has no room for a message")
        file = allocate(_HEADER_BYTES + padded(size), folder)
        with mmap.mmap(file.fileno(), _HEADER_BYTES) as header:
            view = memoryview(header).cast("Q")
            for index, word in enumerate((_MAGIC, _LAYOUT, padded(size), readers)):
                view[index] = word
            view.release()
        return cls(file.fileno()), file

    def fence(self) -> None:
        """Order every load and store before this call before every one after it.

        Releasing a lock and taking it again does that: on x86 each is a locked instruction, on
        ARM a store-release followed by a load-acquire. No other thread has this lock.
        """
        self._lock.release()
        self._lock.acquire()

    @property
    def written(self) -> int:
        """Bytes that the writer has published."""
        return self._words[_WRITTEN]

    def set_written(self, count: int) -> None:
        """Publish what the writer has written."""
        self._words[_WRITTEN] = count

    def read(self, reader: int) -> int:
        """Return the bytes that a reader has consumed."""
        return self._words[_FIRST_READER + _READER_WORDS * reader + _READ]

    def set_read(self, reader: int, count: int) -> None:
        """Publish what a reader has consumed."""
        self._words[_FIRST_READER + _READER_WORDS * reader + _READ] = count

    def sleeps(self, reader: int) -> int:
        """Return 1 if a reader waits for a wake byte, else 0."""
        return self._words[_FIRST_READER + _READER_WORDS * reader + _SLEEPS]

    def set_sleeps(self, reader: int, value: int) -> None:
        """Set whether a reader waits for a wake byte."""
        self._words[_FIRST_READER + _READER_WORDS * reader + _SLEEPS] = value

    def wanted(self, reader: int) -> int:
        """Return the `read` of a reader that the writer waits for; 0: it does not wait."""
        return self._words[_FIRST_READER + _READER_WORDS * reader + _WANTED]

    def set_wanted(self, reader: int, count: int) -> None:
        """Set which `read` of a reader the writer waits for."""
        self._words[_FIRST_READER + _READER_WORDS * reader + _WANTED] = count

    def closed(self, reader: int | None) -> bool:
        """Return whether an end was closed by `close`; None: the writer's."""
        return bool(self._words[self._closed_word(reader)])

    def set_closed(self, reader: int | None) -> None:
        """Note that an end was closed by `close`."""
        self._words[self._closed_word(reader)] = 1

    @staticmethod
    def _closed_word(reader: int | None) -> int:
        if reader is None:
            return _WRITER_CLOSED
        return _FIRST_READER + _READER_WORDS * reader + _READER_CLOSED

    def put_length(self, position: int, count: int) -> None:
        """Store the length of the message at `position`, in bytes."""
        self._lengths[position % self.size // 8] = count

    def length(self, position: int) -> int:
        """Return the length of the message at `position`, in bytes."""
        return self._lengths[position % self.size // 8]

    def put(self, position: int, part: memoryview) -> None:
        """Copy bytes to `position`, around the end if need be."""
        start = position % self.size
        first = min(len(part), self.size - start)
        self._data[start : start + first] = part[:first]
        if first < len(part):
            self._data[: len(part) - first] = part[first:]

    def get(self, position: int, count: int) -> bytes:
        """Return a copy of `count` bytes at `position`."""
        start = position % self.size
        if start + count <= self.size:
            return bytes(self._data[start : start + count])
        return b"".join((self._data[start:], self._data[: start + count - self.size]))

    def close(self) -> None:
        """Unmap the queue. A second call does nothing."""
        for view in (self._lengths, self._data, self._words, self._whole):
            view.release()
        self._map.close()
