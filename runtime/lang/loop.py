"""The event loop behind all programs: one thread that talks to backends.

Programs themselves never run in it: however long a body computes, requests and streams go on.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a daemon thread, started on first use."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may end a state, and call in, at any point.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    @property
    def inside(self) -> bool:
        """Whether the caller is in the loop's thread, where nobody may block."""
        return threading.current_thread() is self._thread

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="umbra-lang", daemon=True
                )
                self._thread.start()
                self._pid = os.getpid()
            return self._loop

    def refuse_fork(self) -> None:
        """Raise RuntimeError in a process that was forked off since: the thread stayed behind."""
        if self._pid not in (0, os.getpid()):
            raise RuntimeError(
                "programs ran before this process was forked, and cannot run in it: "
                "start processes with multiprocessing's method spawn"
            )

    def call(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Call `work` in the loop, soon."""
        self.loop.call_soon_threadsafe(work, *arguments)

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run a coroutine in the loop; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop for ever: an exit, which leaves it, is kept for whoever waits for its task."""
    while True:
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


LOOP = LoopThread()
