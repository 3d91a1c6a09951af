"""A queue of messages in shared memory: one writer, up to 16 readers, each of which reads all.

Waking and sleeping. A reader that finds nothing sets its flag `sleeps`, passes a fence, looks at
`written` again, and only then sleeps on its socket. The writer stores `written`, passes a fence,
and looks at the flag. So one of the two sees the other's store: either the reader does not sleep,
or the writer sees the flag. It then clears the flag and sends a wake byte, in this order: a flag
that it clears too late (the reader has gone on and set it anew) is followed by a byte, after
which the reader sets it again. A surplus byte costs one look. A writer without room does the
same with `wanted`, the count that it needs a reader to reach.

Order of data. A fence stands between the bytes of a message and the `written` that publishes
them, and between a reader's copy and the `read` that frees them: only whole messages are seen.

Death. A connection ends when its peer does. A process that is forked from an end, and executes
nothing new, would keep the connection: an end must not fork.
"""

import platform
import select
import time

from runtime.errors import RuntimeFault
from runtime.wire.queue_link import Deadline, Host, Link, PeerClosed, PeerDied, connect
from runtime.wire.queue_memory import LENGTH_BYTES, QueueMemory, padded

__all__ = ["DEFAULT_BYTES", "PeerClosed", "PeerDied", "QueueReader", "QueueWriter"]

DEFAULT_BYTES = 64 << 20
_WRITER = "writer"
# Elsewhere a reader that spins could see `written` before the bytes of the message.
_SPINS = platform.machine() in {"x86_64", "AMD64"}


class QueueWriter:
    """The writing end. Belongs to one thread.

    addresses  where the readers attach, in their order; [] if this end has attached itself
    """

    def __init__(self, memory: QueueMemory, links: list[Link], host: Host | None = None) -> None:
        """Use `create` or `attach`."""
        self._memory = memory
        self._host = host
        self._links: list[Link] = []
        self._poll = select.poll()
        self._readers: dict[int, int] = {}
        self._written = memory.written
        self.addresses = [] if host is None else host.addresses
        self._take(links)

    @classmethod
    def create(cls, *, readers: int = 1, size: int = DEFAULT_BYTES, folder: str) -> "QueueWriter":
        """Make a queue.

        readers  1 to 16
        size     bytes of messages that it holds, 8 more for each
        folder   private directory for sockets, and for the memory if /dev/shm is too small
        Raises ValueError for bad numbers, RuntimeFault when there is no room.
        """
        memory, file = QueueMemory.create(size, readers, folder)
        return cls(memory, [], Host(file, [f"reader {i}" for i in range(readers)], folder))

    @classmethod
    def attach(cls, address: str, timeout_s: float | None = None) -> "QueueWriter":
        """Write to a queue that its reader has made. Waits until the reader accepts.

        Raises PeerDied when the reader is gone, TimeoutError when it does not accept in time.
        """
        link, memory, _ = _attach(address, _WRITER, timeout_s)
        return cls(memory, [link])

    def accept(self, timeout_s: float | None = None) -> None:
        """Wait until all readers have attached.

        Raises TimeoutError when one has not; it may be called again then.
        """
        if self._host is not None and not self._links:
            self._take(self._host.accept(timeout_s))

    def write(self, *parts: bytes | bytearray | memoryview, timeout_s: float | None = None) -> None:
        """Append a message, the concatenation of `parts`. Waits for room.

        Raises ValueError for a message larger than the queue, PeerDied as soon as any reader has
        died, TimeoutError when there is no room in time; then nothing was written.
        """
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        count = sum(map(len, views))
        needed = LENGTH_BYTES + padded(count)
        if needed > self._memory.size:
            raise ValueError(f"a message of {count} bytes in a queue of {self._memory.size} bytes")
        if not self._links:
            raise RuntimeFault("the readers of the queue have not attached yet")
        self.check()
        self._wait_for_room(needed, timeout_s)
        self._memory.put_length(self._written, count)
        position = self._written + LENGTH_BYTES
        for view in views:
            self._memory.put(position, view)
            position += len(view)
        self._written += needed
        self._memory.fence()
        self._memory.set_written(self._written)
        self._memory.fence()
        for reader, link in enumerate(self._links):
            if self._memory.sleeps(reader):
                self._memory.set_sleeps(reader, 0)
                link.wake()

    def check(self) -> None:
        """Raise PeerDied if a reader has died or closed its end; waits for nothing."""
        self._look(0)

    def close(self) -> None:
        """Close this end: readers get what is written, then PeerClosed. May be called twice."""
        _close(self._memory, None, self._links, self._host)
        self._links, self._host = [], None

    def _take(self, links: list[Link]) -> None:
        self._links = links
        for reader, link in enumerate(links):
            self._poll.register(link, select.POLLIN)
            self._readers[link.fileno()] = reader

    def _wait_for_room(self, needed: int, timeout_s: float | None) -> None:
        """Wait until every reader has consumed what the message will overwrite."""
        memory, wanted = self._memory, self._written + needed - self._memory.size
        deadline: Deadline | None = None
        while True:
            late = [r for r in range(len(self._links)) if memory.read(r) < wanted]
            if not late:
                return
            deadline = deadline or Deadline(timeout_s)
            for reader in late:
                memory.set_wanted(reader, wanted)
            memory.fence()
            if all(memory.read(reader) >= wanted for reader in late):
                return
            left_ms = deadline.left_ms()
            if not self._look(left_ms) and left_ms == 0:
                raise TimeoutError(f"reader {late[0]} has not made room in {timeout_s} s")

    def _look(self, timeout_ms: int | None) -> bool:
        """Wait for a wake byte; return whether there was one."""
        events = self._poll.poll(timeout_ms)
        for descriptor, _ in events:
            reader = self._readers[descriptor]
            if not self._links[reader].drain():
                if self._memory.closed(reader):
                    raise PeerClosed(f"reader {reader} has closed its end of the queue", reader)
                raise PeerDied(f"reader {reader} of the queue has died", reader)
        return bool(events)


class QueueReader:
    """A reading end. Belongs to one thread.

    addresses  where the writer attaches; [] if this end has attached itself
    """

    def __init__(
        self,
        memory: QueueMemory,
        reader: int,
        links: list[Link],
        host: Host | None = None,
        *,
        spin_s: float = 0.0,
    ) -> None:
        """Use `create` or `attach`."""
        self._memory = memory
        self._reader = reader
        self._host = host
        self._links: list[Link] = []
        self._poll = select.poll()
        self._spin_s = spin_s if _SPINS else 0.0
        self._read = memory.read(reader)
        self._gone = False
        self.addresses = [] if host is None else host.addresses
        self._take(links)

    @classmethod
    def create(
        cls, *, size: int = DEFAULT_BYTES, folder: str, spin_s: float = 0.0
    ) -> "QueueReader":
        """Make a queue with one reader, this one; otherwise as `QueueWriter.create`."""
        memory, file = QueueMemory.create(size, 1, folder)
        return cls(memory, 0, [], Host(file, [_WRITER], folder), spin_s=spin_s)

    @classmethod
    def attach(
        cls, address: str, timeout_s: float | None = None, *, spin_s: float = 0.0
    ) -> "QueueReader":
        """Read from a queue that its writer has made. Waits until the writer accepts.

        spin_s  time that `read` polls memory before it sleeps; only x86 polls
        Raises PeerDied when the writer is gone, TimeoutError when it does not accept in time.
        """
        link, memory, role = _attach(address, "reader", timeout_s)
        return cls(memory, int(role.split()[1]), [link], spin_s=spin_s)

    def accept(self, timeout_s: float | None = None) -> None:
        """Wait until the writer has attached; otherwise as `QueueWriter.accept`."""
        if self._host is not None and not self._links:
            self._take(self._host.accept(timeout_s))

    def read(self, timeout_s: float | None = None) -> bytes | None:
        """Return the next message, or None when none came in time.

        timeout_s  rounded up to milliseconds; 0 waits for nothing, None for ever
        Raises PeerDied when the writer has died, PeerClosed when it was closed, each after all
        whole messages are read.
        """
        memory = self._memory
        if memory.written == self._read and not self._wait(timeout_s):
            return None
        memory.fence()
        count = memory.length(self._read)
        if count > memory.size - LENGTH_BYTES:
            raise RuntimeFault(f"the queue is damaged: a message of {count} bytes")
        message = memory.get(self._read + LENGTH_BYTES, count)
        self._read += LENGTH_BYTES + padded(count)
        memory.fence()
        memory.set_read(self._reader, self._read)
        memory.fence()
        wanted = memory.wanted(self._reader)
        if wanted and self._read >= wanted:
            memory.set_wanted(self._reader, 0)
            self._links[0].wake()
        return message

    def close(self) -> None:
        """Close this end: the writer gets PeerClosed. May be called twice."""
        _close(self._memory, self._reader, self._links, self._host)
        self._links, self._host = [], None

    def _take(self, links: list[Link]) -> None:
        self._links = links
        for link in links:
            self._poll.register(link, select.POLLIN)

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait for a message; return whether there is one."""
        if not self._links:
            raise RuntimeFault("the writer of the queue has not attached yet")
        memory, deadline = self._memory, Deadline(timeout_s)
        if self._spin_s and timeout_s != 0 and self._spin(timeout_s):
            return True
        while True:
            left_ms = deadline.left_ms()
            # A reader that will not sleep needs no wake byte.
            memory.set_sleeps(self._reader, int(left_ms != 0))
            memory.fence()
            if memory.written != self._read:
                memory.set_sleeps(self._reader, 0)
                return True
            if self._gone:
                if memory.closed(None):
                    raise PeerClosed("the writer has closed its end of the queue")
                raise PeerDied("the writer of the queue has died")
            if self._poll.poll(left_ms):
                # All that a dead writer has written is visible by now: look once more.
                self._gone = not self._links[0].drain()
            elif left_ms == 0:
                return False

    def _spin(self, timeout_s: float | None) -> bool:
        limit_s = self._spin_s if timeout_s is None else min(self._spin_s, timeout_s)
        memory, end = self._memory, time.perf_counter() + limit_s
        while memory.written == self._read:
            if time.perf_counter() > end:
                return False
        return True


def _attach(address: str, role: str, timeout_s: float | None) -> tuple[Link, QueueMemory, str]:
    link, file, given = connect(address, timeout_s)
    try:
        with file:
            if not given.startswith(role):
                raise RuntimeFault(f"a {role} came to the address of a queue's {given}")
            return link, QueueMemory(file.fileno()), given
    except RuntimeFault:
        link.close()
        raise


def _close(memory: QueueMemory, reader: int | None, links: list[Link], host: Host | None) -> None:
    if host is not None:
        host.close()
    if links:
        memory.set_closed(reader)
        memory.fence()
    for link in links:
        link.close()
    memory.close()
