"""One run of one program: its body, in whichever way it is written, and its state."""

import inspect
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from runtime.errors import Aborted
from runtime.lang.backend import Backend
from runtime.lang.bodies import THREADS, wait
from runtime.lang.executor import Executor
from runtime.lang.loop import LOOP
from runtime.lang.sampling import Sampling
from runtime.lang.state import AsyncState, State
from runtime.lang.waiting import arrival


@dataclass(frozen=True, slots=True)
class Call:
    """A program's function with the arguments of one run."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_async(self) -> bool:
        """Whether the function is an `async def`."""
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, state: Any) -> Any:
        """Run the function on a state."""
        return self.function(state, *self.arguments, **self.keywords)


@dataclass(slots=True)
class _Body:
    """A body that runs.

    executor  what it says is walked there; None once it is over
    """

    executor: Executor | None


_body: ContextVar[_Body | None] = ContextVar("umbra_body", default=None)


@contextmanager
def _inside(executor: Executor) -> Iterator[None]:
    """Let programs that are run inside the block belong to the body it runs."""
    body = _Body(executor)
    token = _body.set(body)
    try:
        yield
    finally:
        # Tasks that were begun inside may live on, and are on their own.
        body.executor = None
        with suppress(ValueError):  # a coroutine nobody awaits any more is closed anywhere
            _body.reset(token)


def enroll(executor: Executor) -> None:
    """Let a new program end with the body that runs here, if one does."""
    body = _body.get()
    if body is not None and body.executor is not None:
        body.executor.take_in(executor)


def _enrolled(backend: Backend, sampling: Sampling, *, streams: bool = False) -> Executor:
    executor = Executor(backend, sampling, streams=streams)
    enroll(executor)
    return executor


def run_here(call: Call, backend: Backend, sampling: Sampling) -> State:
    """Run a body to its end in the calling thread; an async one in the event loop.

    Raises what the body raises; what it had under way is ended then.
    """
    ended: Future[Any] = Future()
    state = State(_enrolled(backend, sampling), ended=None)
    try:
        if call.is_async:
            state = start(call, backend, sampling, streams=False)
            assert state.ended is not None
            wait(state.ended)
            return state
        with _inside(state.executor):
            returned = call(state)
        ended.set_result(returned)
    except BaseException:
        state.cancel()
        raise
    state.ended = ended
    return state


def start(call: Call, backend: Backend, sampling: Sampling, *, streams: bool) -> State:
    """Start a body in the background and return its state, which ends it when it goes away."""
    executor = _enrolled(backend, sampling, streams=streams)
    ended: Future[Any] = Future()
    ended.add_done_callback(lambda _: executor.log.wake())
    executor.body = ended
    if call.is_async:
        _start_async(call, executor, ended)
    else:
        body = State(executor, owns=False)
        THREADS.start(lambda: finish(call, body, ended))
    return State(executor, ended=ended)


async def run_async(call: Call, backend: Backend, sampling: Sampling) -> State:
    """Run a body to its end from any event loop, and wait for all it said.

    An async body runs in the caller's loop. Raises what the body raises; being cancelled ends
    what it has under way.
    """
    state = State(_enrolled(backend, sampling), ended=None)
    try:
        if call.is_async:
            ended: Future[Any] = Future()
            with _inside(state.executor):
                returned = await call(AsyncState(state.executor, owns=False))
            ended.set_result(returned)
            state.ended = ended
        else:
            state = start(call, backend, sampling, streams=False)
            assert state.ended is not None
            await arrival(state.ended)
        await _over(state.executor.settled())
    except BaseException:
        state.cancel()
        raise
    return state


async def _over(promise: "Future[None]") -> None:
    """Wait until a promise is kept or broken; which of them is left to who reads it."""
    over: Future[None] = Future()
    promise.add_done_callback(lambda _: over.set_result(None))
    await arrival(over)


def _start_async(call: Call, executor: Executor, ended: "Future[Any]") -> None:
    async def body() -> Any:
        with _inside(executor):
            work: Coroutine[Any, Any, Any] = call(AsyncState(executor, owns=False))
            return await work

    def hear(done: "Future[Any]") -> None:
        error = Aborted("the program was cancelled") if done.cancelled() else done.exception()
        if error is None:
            ended.set_result(done.result())
        else:
            executor.cancel(error)
            ended.set_exception(error)

    running = LOOP.submit(body())
    executor.stop_body = running.cancel
    running.add_done_callback(hear)


def finish(call: Call, state: State, ended: "Future[Any]") -> Callable[[], None]:
    """Run a plain body to its end; return what keeps the promise of it.

    Whatever the body raises, even SystemExit, belongs to who reads its state: nothing else ends.
    """
    try:
        with _inside(state.executor):
            return partial(ended.set_result, call(state))
    except BaseException as error:
        state.executor.cancel(error)
        return partial(ended.set_exception, error)
