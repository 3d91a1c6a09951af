"""How many connections are open, and which of them may be closed for a new one.

A connection without a whole request costs its client nothing and the server an open file. So the
one that has waited longest is closed when there are too many: a new one always finds a place, and
with it a probe of /health.
"""

from typing import Protocol

from runtime.server.unread_replies import Reader

__all__ = ["PROBES", "Closable", "OpenConnections", "most_connections"]

# Connections beyond those of all requests that may be in flight.
MOST_IDLE = 2048
# The process's own files, and connections that are accepted before others are closed.
_OTHER_FILES = 384
_LEAST = 16
# Places for probes while all others have requests that run.
PROBES = 32


class Closable(Reader, Protocol):
    """A connection that may be closed for another one."""

    def abandon(self) -> bool:
        """Close it at once; return False while a reply is still to be written to it."""
        ...


def most_connections(requests: int, files: int | None) -> int:
    """Return how many connections may be open.

    requests  that may be in flight
    files     that the process may have open; None: any number
    """
    most = requests + MOST_IDLE
    return most if files is None else max(_LEAST, min(most, files - _OTHER_FILES))


class OpenConnections:
    """All connections of a server; belongs to one event loop.

    most               connections that may be open, besides probes
    closed_for_others  how many were closed because there were too many
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[Closable] = set()
        # A dictionary for its order: the one that has waited longest is first.
        self._idle: dict[Closable, None] = {}
        self.closed_for_others = 0

    @property
    def count(self) -> int:
        """Connections that are open."""
        return len(self._open)

    def all(self) -> list[Closable]:
        """Return all that are open."""
        return list(self._open)

    def add(self, connection: Closable) -> bool:
        """Take a new connection, which waits for a request.

        Returns False where all others have requests that run: then it may only ask for health.
        """
        self._open.add(connection)
        self.set_idle(connection)
        if len(self._open) > self._most:
            self._close_idle(besides=connection)
        if len(self._open) > self._most + PROBES:
            self._close(connection)
        return len(self._open) <= self._most

    def set_idle(self, connection: Closable) -> None:
        """Note that a connection waits for a request."""
        if connection in self._open:
            self._idle.pop(connection, None)
            self._idle[connection] = None

    def set_busy(self, connection: Closable) -> None:
        """Note that a connection has received a whole request."""
        self._idle.pop(connection, None)

    def remove(self, connection: Closable) -> None:
        """Note that a connection is closed."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def _close_idle(self, *, besides: Closable) -> None:
        for connection in self._idle:
            if connection is not besides and self._close(connection):
                return

    def _close(self, connection: Closable) -> bool:
        if not connection.abandon():
            return False
        self.remove(connection)
        self.closed_for_others += 1
        return True
