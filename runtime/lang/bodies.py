"""Program bodies, many in a thread: each is a greenlet, and where it waits another one runs.

A body is ordinary synchronous code. Reading a value that is not there yet switches to the thread's
scheduler instead of blocking the thread, so that a thousand programs need a few threads. Bodies
start in whichever thread is free: one that blocks on something else (a tool, a file) holds up
only those that wait in the same thread. Where all threads are blocked, another one is started
now and then: what they wait for may be a body that has yet to begin.
"""

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from runtime.lang.extra import require
from runtime.lang.loop import LOOP

MAX_THREADS = 16
# How long bodies may lie about, and none begin, before there is a thread more.
PATIENCE_S = 1.0

Result = TypeVar("Result")
# It returns what is to be called once it is over, such as what tells others so. In the body itself
# that could let the process exit while the thread is still inside of a greenlet, which crashes.
Body = Callable[[], Callable[[], None] | None]


@dataclass(frozen=True, slots=True)
class _New:
    """A body that has not begun."""

    body: Body
    context: contextvars.Context


class BodyThreads:
    """Threads that run bodies, started as they are needed. A body must not raise.

    max_threads  where none of them is stuck
    """

    def __init__(self, max_threads: int = MAX_THREADS, *, patience_s: float = PATIENCE_S) -> None:
        self._pool = _Pool(max_threads)
        self._least = max_threads
        self._asked_for: list[int] = []
        self._patience_s = patience_s
        self._is_watched = False

    @contextmanager
    def at_least(self, count: int) -> Iterator[None]:
        """Inside the block, let up to `count` bodies that block run at once, a thread each."""
        with self._pool.lock:
            self._asked_for.append(count)
            self._pool.max_threads = max(self._least, *self._asked_for)
        try:
            yield
        finally:
            with self._pool.lock:
                self._asked_for.remove(count)
                self._pool.max_threads = max([self._least, *self._asked_for])

    def start(self, body: Body) -> None:
        """Run `body` as soon as a thread is free, in a copy of the caller's context.

        A thread in which no other body waits is preferred: should this one block, none suffers.
        Raises ConfigError where greenlet is not installed.
        """
        require("greenlet")
        new, pool = _New(body, contextvars.copy_context()), self._pool
        with pool.lock:
            thread = min(pool.idle, key=lambda t: t.parked, default=None)
            if pool.count < pool.max_threads and (thread is None or thread.parked):
                pool.begin(new)
                return
            if thread is not None:
                thread.give(new)
                return
            pool.left.append(new)
            if self._is_watched:
                return
            self._is_watched = True
        LOOP.call(self._watch)

    def _watch(self) -> None:
        """Look at what is left, in the event loop, until nothing is."""
        with self._pool.lock:
            self._is_watched = bool(self._pool.left)
            taken = self._pool.taken
        if self._is_watched:
            LOOP.loop.call_later(self._patience_s, self._relieve, taken)

    def _relieve(self, taken: int) -> None:
        """Start a thread more if nothing that was left has been taken since `taken` was.

        It begins with the latest: that is what earlier bodies wait for, if they do.
        """
        pool = self._pool
        with pool.lock:
            if pool.left and pool.taken == taken:
                with suppress(RuntimeError):  # no thread is to be had now
                    pool.begin_more(pool.left[-1])
                    pool.take(latest=True)
        self._watch()


class _Pool:
    """What threads share; its methods want the lock held.

    count  threads, but for those there are more
    idle   such that do nothing
    spare  threads that there are more, and do nothing
    left   bodies that no thread was free for
    taken  how many there were and are no more
    """

    def __init__(self, max_threads: int) -> None:
        self.max_threads = max_threads
        self.lock = threading.Lock()
        self.count = 0
        self.left: deque[_New] = deque()
        self.taken = 0
        self.idle: list[_BodyThread] = []
        self.spare: list[_BodyThread] = []

    def begin(self, new: _New) -> None:
        """Start a thread that runs `new` first."""
        _BodyThread(self, first=new).start()
        self.count += 1

    def begin_more(self, new: _New) -> None:
        """Run `new` in a thread beyond the usual number. Raises RuntimeError where none starts."""
        if self.spare:
            self.spare[-1].give(new)
        else:
            _BodyThread(self, first=new, is_more=True).start()

    def take(self, *, latest: bool) -> _New | None:
        """Return one that was left, if any."""
        if not self.left:
            return None
        self.taken += 1
        return self.left.pop() if latest else self.left.popleft()


class _BodyThread(threading.Thread):
    """One thread, which never ends; `give` wants the pool's lock held.

    is_more  beyond the usual number: it runs the latest that is left, and one after the other, so
             that nothing which blocks comes upon what others wait for
    parked   bodies that wait here
    """

    def __init__(self, pool: _Pool, *, first: _New, is_more: bool = False) -> None:
        super().__init__(name="umbra-body", daemon=True)
        self._pool = pool
        self._is_more = is_more
        self._rests = pool.spare if is_more else pool.idle
        self._inbox: deque[Any] = deque([first])
        self._news = threading.Condition(pool.lock)
        self._scheduler: Any = None
        self.parked = 0

    def run(self) -> None:
        """Go on with what waited, or begin what is new, for ever."""
        from greenlet import getcurrent, greenlet

        _here.thread = self
        self._scheduler = getcurrent()
        while True:
            with self._pool.lock:
                item = self._next()
            if isinstance(item, _New):
                context = item.context
                item = greenlet(item.body)
                item.gr_context = context
            returned = item.switch()
            if item.dead and returned is not None:
                returned()
            del item, returned

    def give(self, item: Any) -> None:
        """Let the thread take up an item when it gets to it."""
        self._inbox.append(item)
        if self in self._rests:
            self._rests.remove(self)
        self._news.notify()

    def park(self, future: "Future[Any]") -> None:
        """Let others run until `future` is done. Called by a body, without the lock."""
        from greenlet import getcurrent

        waiting = getcurrent()

        def resume(_: "Future[Any]") -> None:
            with self._pool.lock:
                self.parked -= 1
                self.give(waiting)

        with self._pool.lock:
            self.parked += 1
        future.add_done_callback(resume)
        self._scheduler.switch()

    def _next(self) -> Any:
        """Return what to go on with. Waits, with the lock held."""
        while not self._inbox:
            is_full = self._is_more and self.parked > 0
            if not is_full:
                if (new := self._pool.take(latest=self._is_more)) is not None:
                    return new
                if self not in self._rests:
                    self._rests.append(self)
            self._news.wait()
        return self._inbox.popleft()


class _Here(threading.local):
    thread: _BodyThread | None = None


_here = _Here()
THREADS = BodyThreads()


def in_body() -> bool:
    """Return whether the caller is a body that runs as a greenlet."""
    return _here.thread is not None


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
