"""Many programs at once: started as others finish, handed out in order."""

import contextvars
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from tqdm import tqdm

from runtime.errors import RequestError
from runtime.lang.backend import Backend
from runtime.lang.bodies import wait, wait_over
from runtime.lang.loop import LOOP
from runtime.lang.running import Call, start
from runtime.lang.sampling import Sampling
from runtime.lang.state import State
from runtime.lang.trace import common_prefix

# As many as a server queues by default.
AT_ONCE = 1024


class Batch:
    """The runs of one function, each with its sampling, at most `at_once` of them at a time."""

    def __init__(
        self, calls: Sequence[tuple[Call, Sampling]], backend: Backend, *, at_once: int
    ) -> None:
        self._calls = calls
        self._backend = backend
        self._at_once = at_once
        self._context = contextvars.copy_context()
        self._lock = threading.RLock()
        self._states: list[State | None] = [None] * len(calls)
        self._over: list[Future[None]] = [Future() for _ in calls]
        self._started = 0
        self._closed = False
        self._bar: Any = None

    def results(self, *, progress: bool) -> Iterator[State]:
        """Yield the states in order, each when its program is over.

        What went wrong in one stays in its state. Closing the iterator ends what still runs.
        """
        self._bar = tqdm(total=len(self._calls), disable=not progress)
        try:
            if len(self._calls) > 1:
                self._cache_prefix()
            for _ in range(min(self._at_once, len(self._calls))):
                self._start_next()
            for index, over in enumerate(self._over):
                wait_over(over)
                state = self._states[index]
                assert state is not None
                self._states[index] = None
                yield state
        finally:
            self._close()

    def _cache_prefix(self) -> None:
        prefix = common_prefix([call for call, _ in self._calls], self._backend)
        if prefix is None:
            return
        # Programs say themselves what is wrong with their prompts, or with the backend.
        with suppress(RequestError):
            wait(LOOP.submit(self._backend.cache_prefix(prefix)))

    def _start_next(self) -> None:
        with self._lock:
            index = self._started
            if self._closed or index == len(self._calls):
                return
            self._started += 1
        self._context.copy().run(self._start, index)

    def _start(self, index: int) -> None:
        call, sampling = self._calls[index]
        state = start(call, self._backend, sampling, streams=False)
        with self._lock:
            self._states[index] = state
            closed = self._closed
        if closed:  # meanwhile, and nobody has ended this one
            state.cancel()
        executor, over, ended = state.executor, self._over[index], state.ended
        assert ended is not None

        def settle() -> None:
            executor.settled().add_done_callback(finish)

        def finish(_: "Future[None]") -> None:
            with self._lock:
                if not self._closed:
                    self._bar.update()
            over.set_result(None)
            self._start_next()

        # Not from here: programs that end at once would stand in each other's calls.
        ended.add_done_callback(lambda _: LOOP.call(settle))

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            self._bar.close()
        for state, over in zip(self._states, self._over, strict=True):
            if state is not None and not over.done():
                state.cancel()
