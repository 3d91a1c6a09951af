"""Lets one of several processes compile a product while the others wait, to find it made.

Ranks of one host start together and need the same kernels: without turns each of them would run
the same compilers, and all would take as much longer. A turn is a lock of the kernel on a file
beside the product, so that it ends with a process that dies. Whoever waits too long compiles, too:
products are moved into place whole.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["LIMIT_S", "CompileLock", "alone"]

logger = logging.getLogger("umbra.kernels")

# Longest that another process is waited for; all kernels of a new GPU take a few minutes.
LIMIT_S = 900.0
# After so long the log says what is waited for.
_TELL_S = 10.0
_POLL_S = 0.05


class CompileLock:
    """The lock on one product. Belongs to one thread."""

    def __init__(self, path: Path) -> None:
        """Name the file, which is there while somebody compiles or waits."""
        self._path = path
        self._descriptor: int | None = None

    def acquire(
        self, what: str, *, limit_s: float = LIMIT_S, stopped: Callable[[], bool] = lambda: False
    ) -> bool:
        """Wait for the turn; return False where it did not come.

        That is after `limit_s`, once `stopped` says so, and in folders that take no locks.

        what  is compiled, for the log
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        if _locked(descriptor, what, limit_s=limit_s, stopped=stopped):
            self._descriptor = descriptor
            return True
        os.close(descriptor)
        return False

    def release(self) -> None:
        """Let the next one have its turn; nothing where the turn had not come."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # Who waits has it open. Who comes later finds the product.
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(descriptor)


@contextlib.contextmanager
def alone(
    path: Path,
    what: str,
    *,
    limit_s: float = LIMIT_S,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Wait for the turn on a product, and hold it for the block; see `CompileLock.acquire`."""
    lock = CompileLock(path)
    lock.acquire(what, limit_s=limit_s, stopped=stopped)
    try:
        yield
    finally:
        lock.release()


def _locked(descriptor: int, what: str, *, limit_s: float, stopped: Callable[[], bool]) -> bool:
    """Lock a file, waiting for its turn; return whether that came."""
    began, told = time.monotonic(), False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            waited_s = time.monotonic() - began
        except OSError:
            return False
        if stopped():
            return False
        if waited_s > limit_s:
            logger.warning("Another process has compiled %s for %.0f s: not waiting", what, limit_s)
            return False
        if waited_s > _TELL_S and not told:
            logger.warning("Another process compiles %s: waiting for it", what)
            told = True
        time.sleep(_POLL_S)
