"""Program bodies, many in a thread: each is a greenlet, and where it waits another one runs.

A body is ordinary synchronous code. Reading a value that is not there yet switches to the thread's
scheduler instead of blocking the thread, so that a thousand programs need a few threads. Bodies
start in whichever thread is free: one that blocks on something else (a tool, a file) holds up
only those that wait in the same thread.
"""

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from runtime.lang.loop import LOOP

MAX_THREADS = 16

Result = TypeVar("Result")
Body = Callable[[], None]


class BodyThreads:
    """Threads that run bodies, started as they are needed. A body must not raise."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._max_threads = max_threads
        self._count = 0
        self._lock = threading.Lock()
        # What no thread was free for.
        self._left: deque[_New] = deque()
        self._idle: list[_BodyThread] = []

    def start(self, body: Body) -> None:
        """Run `body` as soon as a thread is free, in a copy of the caller's context.

        A thread in which no other body waits is preferred: should this one block, none suffers.
        """
        new = _New(body, contextvars.copy_context())
        with self._lock:
            thread = min(self._idle, key=lambda t: t.parked, default=None)
            if self._count < self._max_threads and (thread is None or thread.parked):
                self._count += 1
                _BodyThread(self._lock, self._left, self._idle, first=new).start()
            elif thread is not None:
                thread.give(new)
            else:
                self._left.append(new)


@dataclass(frozen=True, slots=True)
class _New:
    """A body that has not begun."""

    body: Body
    context: contextvars.Context


class _BodyThread(threading.Thread):
    """One thread; its methods want the common lock held.

    parked  bodies that wait here
    """

    def __init__(
        self,
        lock: threading.Lock,
        left: "deque[_New]",
        idle: "list[_BodyThread]",
        *,
        first: "_New",
    ) -> None:
        super().__init__(name="umbra-body", daemon=True)
        self._lock = lock
        self._left = left
        self._idle = idle
        self._inbox: deque[Any] = deque([first])
        self._news = threading.Condition(lock)
        self._scheduler: Any = None
        self.parked = 0

    def run(self) -> None:
        """Go on with what waited, or begin what is new, for ever."""
        from greenlet import getcurrent, greenlet

        _here.thread = self
        self._scheduler = getcurrent()
        while True:
            with self._lock:
                item = self._next()
            if isinstance(item, _New):
                context = item.context
                item = greenlet(item.body)
                item.gr_context = context
            item.switch()
            del item

    def give(self, item: Any) -> None:
        """Let the thread take up an item when it gets to it."""
        self._inbox.append(item)
        if self in self._idle:
            self._idle.remove(self)
            self._news.notify()

    def park(self, future: "Future[Any]") -> None:
        """Let others run until `future` is done. Called by a body, without the lock."""
        from greenlet import getcurrent

        waiting = getcurrent()

        def resume(_: "Future[Any]") -> None:
            with self._lock:
                self.parked -= 1
                self.give(waiting)

        with self._lock:
            self.parked += 1
        future.add_done_callback(resume)
        self._scheduler.switch()

    def _next(self) -> Any:
        while not self._inbox:
            if self._left:
                return self._left.popleft()
            if self not in self._idle:
                self._idle.append(self)
            self._news.wait()
        return self._inbox.popleft()


class _Here(threading.local):
    thread: _BodyThread | None = None


_here = _Here()
THREADS = BodyThreads()


def wait(future: "Future[Result]") -> Result:
    """Return the future's result; see `wait_over`. Raises what the future raises."""
    wait_over(future)
    return future.result()


def wait_over(future: "Future[Any]") -> None:
    """Wait until a future is done: a body lets others run meanwhile, anyone else blocks.

    Raises RuntimeError in the event loop's own thread, where blocking would stop every program.
    """
    if future.done():
        return
    if _here.thread is not None:
        _here.thread.park(future)
    elif LOOP.inside:
        raise RuntimeError("an async program must await what it reads")
    else:
        futures.wait([future])
