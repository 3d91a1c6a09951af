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
from runtime.lang.bodies import THREADS, wait, wait_over
from runtime.lang.failures import named, shorten
from runtime.lang.loop import LOOP
from runtime.lang.recent import commit
from runtime.lang.running import Call, start
from runtime.lang.sampling import Sampling
from runtime.lang.state import State
from runtime.lang.trace import common_prefix

# As many as a server queues by default.
AT_ONCE = 1024


class Batch:
    """The runs of one function, each with its sampling, at most `at_once` of them at a time.

    threads       how many of their bodies may block at once, if that is more than usual
    traces        run the function on placeholders first, to find what all programs begin with
    raise_errors  end the batch when a program fails; False: leave the failure in its state
    lazy          the states are read one by one: those before the one that failed are finished
    """

    def __init__(
        self,
        calls: Sequence[tuple[Call, Sampling]],
        backend: Backend,
        *,
        at_once: int,
        threads: int = 0,
        traces: bool = True,
        raise_errors: bool = True,
        lazy: bool = False,
    ) -> None:
        self._calls = calls
        self._backend = backend
        self._at_once = at_once
        self._threads = threads
        self._traces = traces
        self._raise_errors = raise_errors
        self._lazy = lazy
        self._context = contextvars.copy_context()
        self._lock = threading.RLock()
        self._states: list[State | None] = [None] * len(calls)
        self._over: list[Future[None]] = [Future() for _ in calls]
        self._started = 0
        # Programs from here on are not wanted any more.
        self._end = len(calls)
        self._failure: tuple[int, BaseException] | None = None
        self._bar: Any = None

    def results(self, *, progress: bool) -> Iterator[State]:
        """Yield the states in order, each when its program is over.

        Raises the first failure once every other program has ended. Closing the iterator ends
        what still runs.
        """
        self._bar = tqdm(total=len(self._calls), disable=not progress)
        with THREADS.at_least(min(self._threads, len(self._calls))):
            try:
                if self._traces and len(self._calls) > 1:
                    self._cache_prefix()
                for _ in range(min(self._at_once, len(self._calls))):
                    self._start_next()
                for index, over in enumerate(self._over):
                    wait_over(over)
                    self._check(index)
                    state = self._states[index]
                    assert state is not None
                    self._states[index] = None
                    yield state
            finally:
                self._end_from(0)
                self._bar.close()

    def _cache_prefix(self) -> None:
        prefix = common_prefix([call for call, _ in self._calls], self._backend)
        if prefix is None:
            return
        # Programs say themselves what is wrong with their prompts, or with the backend.
        with suppress(RequestError):
            wait(LOOP.submit(commit(self._backend, prefix)))

    def _start_next(self) -> None:
        with self._lock:
            index = self._started
            if index >= self._end:
                return
            self._started += 1
        self._context.copy().run(self._start, index)

    def _start(self, index: int) -> None:
        call, sampling = self._calls[index]
        state = start(call, self._backend, sampling, streams=False)
        with self._lock:
            self._states[index] = state
            is_unwanted = index >= self._end
        if is_unwanted:  # since it was started
            state.cancel()
        assert state.outcome is not None
        # Not from here: programs that end at once would stand in each other's calls.
        state.outcome.add_done_callback(lambda outcome: LOOP.call(self._finish, index, outcome))

    def _finish(self, index: int, outcome: "Future[None]") -> None:
        error = outcome.exception() if self._raise_errors else None
        with self._lock:
            is_wanted = index < self._end
            if is_wanted and error is None:
                self._bar.update()
            elif is_wanted and error is not None:
                self._failure = index, error
        if is_wanted and error is not None:
            self._end_from(index if self._lazy else 0)
        self._over[index].set_result(None)
        self._start_next()

    def _end_from(self, index: int) -> None:
        """Start none of the programs from `index` on, and end those that run."""
        with self._lock:
            self._end = min(self._end, index)
            states = self._states[index:]
            over = self._over[index:]
        for state, promise in zip(states, over, strict=True):
            if state is not None and not promise.done():
                state.cancel()

    def _check(self, index: int) -> None:
        """Raise the failure that ends the batch at `index`, if there is one."""
        with self._lock:
            failure, started = self._failure, self._over[: self._started]
        if failure is None or (self._lazy and index < failure[0]):
            return
        for over in started:
            wait_over(over)
        failed, error = failure
        where = f"batch[{failed}]"
        if isinstance(error, RequestError):
            error = named(error, where)
            shorten(error)
            raise error from None
        error.add_note(f"in {where}")
        raise error
