"""One virtual clock, and an event loop that runs on it: nothing sleeps, nothing has a thread."""

import asyncio
import contextlib
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

TICK_S = 1e-6


class VirtualClock:
    """Seconds that pass only when somebody says so; each reading takes `TICK_S`."""

    def __init__(self) -> None:
        self.now_s = 1.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        self.now_s += TICK_S
        return self.now_s

    def advance_to(self, at_s: float) -> None:
        """Let time pass up to `at_s`, unless it is over already."""
        self.now_s = max(self.now_s, at_s)


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in the order in which they were asked for, timers when the clock says so.

    faults  exceptions that nobody has taken
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self.faults: list[BaseException] = []

    def run_ready(self) -> None:
        """Run all that can run now, and what comes of that."""
        if not self._ready and not self._due:
            return
        events._set_running_loop(self)
        try:
            while self._ready or self._due:
                while self._due:
                    self._ready.append(heapq.heappop(self._timers)[2])
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)
        if self.faults:
            raise self.faults[0]

    @property
    def _due(self) -> bool:
        return bool(self._timers) and self._timers[0][0] <= self._clock.now_s

    @property
    def next_timer_s(self) -> float:
        """When the next timer is due; infinity: there is none."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else float("inf")

    @contextlib.contextmanager
    def running(self) -> Any:
        """Be the running loop for as long as this is entered, for code that asks for one."""
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(None)

    # --- what asyncio needs of a loop

    def time(self) -> float:
        """Return the time in seconds."""
        return self._clock.now_s

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Queue a callback."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Queue a callback for in so many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Queue a callback for a time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def create_future(self) -> "asyncio.Future[Any]":
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, coro: Coroutine[Any, Any, T], **_: Any
    ) -> "asyncio.Task[T]":
        """Start a task; what it raises is a fault."""
        task = asyncio.Task(coro, loop=self)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.faults.append(fault)

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Whether it runs callbacks now."""
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        """Return False: there is nothing to close."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep the exception for `run_ready`."""
        fault = context.get("exception")
        self.faults.append(fault or RuntimeError(str(context.get("message"))))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Let it be: it is passed over when it is due."""
