"""When the invariants of the cache are verified: after every step if asked, else in quiet times."""

from collections import deque
from collections.abc import Iterator, Sequence

from mem_cache.errors import IntegrityError
from runtime.scheduler.request import Request
from runtime.scheduler.residency import Residency

__all__ = ["IntegrityWatch", "check_locks"]

# Looking at every page takes a while (measured: 12 us each), and a request might come in then.
QUIET_S = 5.0
_DONE = object()


class IntegrityWatch:
    """Verifies requests, tree and pools.

    every_step  after each step and once when idle; otherwise once after each busy spell, when
                there has been no request for `QUIET_S`, a part in each turn: who comes then does
                not wait for all of it
    """

    def __init__(self, residency: Residency, *, every_step: bool) -> None:
        self._residency = residency
        self._every_step = every_step
        self._quiet_s = 0.0 if every_step else QUIET_S
        self._idle_since_s: float | None = None
        self._verified = True
        self._parts: Iterator[None] | None = None

    def stepped(self, running: Sequence[Request]) -> None:
        """Note that a step was settled. Raises IntegrityError."""
        self.changed()
        self._verified = False
        if self._every_step:
            deque(self._check(running), maxlen=0)

    def changed(self) -> None:
        """Note that the cache is in use: what was verified by half must be verified anew."""
        self._idle_since_s = self._parts = None

    def idle(self, now_s: float) -> None:
        """Note that no request waits or runs. Raises IntegrityError."""
        if self._verified:
            return
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        if now_s - self._idle_since_s < self._quiet_s:
            return
        if self._parts is None:
            self._parts = self._check(())
        self._verified = next(self._parts, _DONE) is _DONE

    def _check(self, running: Sequence[Request]) -> Iterator[None]:
        for request in running:
            request.check()
        check_locks(self._residency, running)
        full, swa, states = self._residency.references(running)
        yield from self._residency.cache.check_in_steps(full=full, swa=swa, states=states)


def check_locks(residency: Residency, running: Sequence[Request]) -> None:
    """Raise IntegrityError unless the lock of each row protects all pages that the row shares."""
    arrays = residency.cache.arrays
    parent, number = arrays.page("parent"), arrays.page("number")
    for request in running:
        lock, shared = request.holding.lock, request.holding.shared_pages
        if lock is None or not shared:
            continue
        node, last = lock.node, int(residency.table.page_table[request.row, shared - 1])
        while node > 0 and number[node] >= shared:
            node = int(parent[node])
        if node <= 0 or arrays.unit[node] != last:
            raise IntegrityError(
                f"request {request.id} shares page {last}, which its lock does not protect"
            )
