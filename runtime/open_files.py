"""How many files a server may have open: each client's connection is one.

A usual limit of 1,024 is less than the clients that queue and rows take. Beyond it nobody is told
so: connections stay unanswered, those of /health too.
"""

import contextlib
import errno
import logging
import socket
import time
from typing import Any

logger = logging.getLogger("umbra.launch")

MOST_FILES = 1 << 16
# A server's own, and connections that ask for /health and /metrics or are idle between requests.
SPARE_FILES = 128
# Connections accepted in one turn of the loop: they count as open from the next turn on.
_AT_ONCE = 64
# asyncio tries again after a second.
_PAUSE_S = 0.5


class Listener(socket.socket):
    """A listening socket that is bounded in what asyncio takes from it at once.

    Of a lack of files it tells once for each time that asyncio tries.
    asyncio, told so, goes on to accept as often as its backlog says, logs each failure, and tries
    again for each of them: a storm of 7,000 records a second in which nothing else is served.
    """

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        """Make a socket, as `socket.socket` does."""
        super().__init__(family, kind, protocol)
        self._full_until = 0.0
        self._accepted = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Take a connection. Raises BlockingIOError if there is none, or just now no file for it.

        Raises OSError for the first that there is no file for.
        """
        if time.monotonic() < self._full_until:
            raise BlockingIOError(errno.EAGAIN, "too many open files")
        self._accepted += 1
        if self._accepted > _AT_ONCE:
            self._accepted = 0
            raise BlockingIOError(errno.EAGAIN, "others have a turn")
        try:
            return super().accept()
        except OSError as fault:
            if fault.errno in (errno.EMFILE, errno.ENFILE):
                self._full_until = time.monotonic() + _PAUSE_S
            raise


def raise_file_limit() -> None:
    """Let the process, and those it starts, open as many files as it may, `MOST_FILES` at most."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # no Unix, or not to be had
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def file_limit() -> int | None:
    """Return how many files the process may have open; None where there is no limit."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def warn_of_few_files(clients: int) -> None:
    """Log it where so many clients at once would take more files than there may be."""
    limit = file_limit()
    if limit is not None and limit < clients + SPARE_FILES:
        logger.warning(
            "at most %d files may be open, fewer than the %d clients that --max-queued-requests "
            "and --max-running-requests take and %d more: raise the limit (ulimit -n), or lower "
            "these",
            limit,
            clients,
            SPARE_FILES,
        )
