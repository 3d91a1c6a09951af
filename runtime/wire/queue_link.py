"""Connections between the ends of a queue: they wake a peer and show that it has ended.

The end that makes a queue is the host; it listens on one Unix socket for each guest. A guest
connects and gets the descriptor of the memory. After that the connection carries only wake
bytes. The kernel closes it when a process ends, killed or not.
"""

import contextlib
import io
import math
import os
import secrets
import select
import socket
import time
from pathlib import Path

from runtime.errors import RuntimeFault, WorkerDied

__all__ = ["Deadline", "Host", "Link", "PeerClosed", "PeerDied", "connect"]

_ROLE_BYTES = 16


class PeerDied(WorkerDied):
    """The process at another end of a queue has died.

    reader  number of the reader that died; None: the writer
    """

    def __init__(self, message: str, reader: int | None = None) -> None:
        super().__init__(message)
        self.reader = reader


class PeerClosed(PeerDied):
    """The other end of a queue was closed by a call of `close`."""


class Deadline:
    """A time until which to wait; None: for ever."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end = math.inf if timeout_s is None else time.monotonic() + timeout_s

    def left_ms(self) -> int | None:
        """Return milliseconds, rounded up, at least 0; None: for ever."""
        if self._end == math.inf:
            return None
        return max(0, math.ceil((self._end - time.monotonic()) * 1000))


class Link:
    """A connected socket between two ends."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected

    def fileno(self) -> int:
        """Return the descriptor to poll: it becomes readable by a wake byte and by a death."""
        return self._socket.fileno()

    def wake(self) -> None:
        """Send a wake byte; never blocks."""
        # With a full buffer the peer wakes by the bytes in it. A broken connection is found by
        # `drain`.
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            self._socket.send(b"\0")

    def drain(self) -> bool:
        """Take the wake bytes that have arrived; return whether the peer is alive."""
        try:
            while self._socket.recv(4096):
                pass
        except BlockingIOError:
            return True
        except ConnectionResetError:  # it ended with unread bytes of this end
            return False
        return False

    def close(self) -> None:
        """Close the connection: the peer sees its end."""
        self._socket.close()


class Host:
    """The listening sockets of a queue's maker.

    addresses  one for each guest: a path, for the start of its process
    """

    def __init__(self, file: io.FileIO, roles: list[str], folder: str) -> None:
        """Listen for one guest for each of `roles`; `file` is given to each, and closed then.

        folder  private to this user. Raises RuntimeFault when no socket can be made there.
        """
        self._file = file
        self._roles = roles
        self._links: list[Link] = []
        self._listeners: list[socket.socket] = []
        name = secrets.token_hex(4)
        self.addresses = [f"{folder}/{name}{index:x}" for index in range(len(roles))]
        try:
            for address in self.addresses:
                self._listeners.append(_listen(address))
        except OSError as fault:
            self.close()
            raise RuntimeFault(f"no socket for a queue in {folder}: {fault}") from fault

    def accept(self, timeout_s: float | None) -> list[Link]:
        """Wait for all guests; return their links, by role, once.

        Raises TimeoutError when one has not connected in time; it may be called again then.
        """
        deadline = Deadline(timeout_s)
        while len(self._links) < len(self._roles):
            number = len(self._links)
            listener = self._listeners[number]
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            if not poll.poll(deadline.left_ms()):
                raise TimeoutError(f"no {self._roles[number]} has attached in {timeout_s} s")
            connected, _ = listener.accept()
            Path(self.addresses[number]).unlink(missing_ok=True)
            listener.close()
            role = self._roles[number].encode().ljust(_ROLE_BYTES)
            # A guest that has died meanwhile is found when the link is used.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(connected, [role], [self._file.fileno()])
            self._links.append(Link(connected))
        self._file.close()
        links, self._links = self._links, []
        self._roles = []
        return links

    def close(self) -> None:
        """Stop listening; links that `accept` returned stay. A second call does nothing."""
        self._file.close()
        for link in self._links:
            link.close()
        for listener, address in zip(self._listeners, self.addresses, strict=False):
            Path(address).unlink(missing_ok=True)
            listener.close()


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address)
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener


def connect(address: str, timeout_s: float | None) -> tuple[Link, io.FileIO, str]:
    """Connect to a host; return the link, the queue's file and this guest's role.

    Raises PeerDied when the host is gone, TimeoutError when it has not accepted in time.
    """
    with contextlib.ExitStack() as undo:
        connected = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connected.settimeout(timeout_s)
        try:
            connected.connect(address)
            role, descriptors, _, _ = socket.recv_fds(connected, _ROLE_BYTES, 1)
        except (ConnectionError, FileNotFoundError) as fault:
            raise PeerDied(f"no host of a queue listens at {address}: {fault}") from fault
        if not descriptors:
            raise PeerDied(f"the process that listened at {address} has ended")
        undo.pop_all()
    os.set_inheritable(descriptors[0], False)
    return Link(connected), io.FileIO(descriptors[0], "r+"), role.decode().strip()
