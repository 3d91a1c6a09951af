"""All executors of one run: whether any still works, and which failures nothing has read."""

import threading
import weakref
from concurrent.futures import Future

from runtime.lang.family import Member, Worker


class Group:
    """The executors of one run: its state's, those of forks, and those of programs it runs.

    A failure is unread until something raises or returns it to the program's code; a run ends
    with the first one that is still unread. Every method may be called from any thread.
    """

    def __init__(self) -> None:
        # Reentrant: the garbage collector may drop a fork while this thread holds it.
        self._lock = threading.RLock()
        self._is_open = False
        self._working = 0
        self._waiting: list[Future[None]] = []
        self._unread: dict[Member, BaseException] = {}
        self._dropped: weakref.WeakSet[Worker] = weakref.WeakSet()

    # --- the run

    def open(self) -> None:
        """Begin a run: until `close`, a fork finishes its work even when nobody holds it."""
        self._is_open = True

    def close(self) -> list[Worker]:
        """End the run; return the executors that nobody holds any more."""
        with self._lock:
            self._is_open = False
            dropped = list(self._dropped)
            self._dropped.clear()
        return dropped

    def keeps(self, executor: Worker) -> bool:
        """Return whether the run still needs an executor that nobody holds any more."""
        with self._lock:
            if self._is_open:
                self._dropped.add(executor)
            return self._is_open

    # --- its work

    def begin_work(self) -> None:
        """Count an executor that starts to work."""
        with self._lock:
            self._working += 1

    def end_work(self) -> None:
        """Count an executor that has stopped working."""
        with self._lock:
            self._working -= 1
            waiting, self._waiting = ([], self._waiting) if self._working else (self._waiting, [])
        for future in waiting:
            future.set_result(None)

    def idle(self) -> "Future[None]":
        """Return a future that is done as soon as no executor works."""
        future: Future[None] = Future()
        with self._lock:
            if self._working:
                self._waiting.append(future)
                return future
        future.set_result(None)
        return future

    # --- its failures

    def add_failure(self, member: Member, error: BaseException) -> None:
        """Keep an executor's failure until it is read."""
        with self._lock:
            self._unread.setdefault(member, error)

    def drop_failure(self, member: Member, error: BaseException | None = None) -> None:
        """Forget an executor's failure; with `error`, only if it is this one."""
        with self._lock:
            if error is None or self._unread.get(member) is error:
                self._unread.pop(member, None)

    def failure(self) -> BaseException | None:
        """Return the earliest failure that nobody has read."""
        with self._lock:
            return next(iter(self._unread.values()), None)
