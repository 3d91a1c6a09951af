"""One run of one program: its body, in whichever way it is written, and its state."""

import inspect
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from runtime.lang.backend import Backend
from runtime.lang.bodies import THREADS, wait
from runtime.lang.executor import Executor
from runtime.lang.failures import cancelled
from runtime.lang.group import Group
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

    @property
    def texts(self) -> tuple[str, ...]:
        """The arguments that may stand in a text as they are."""
        values = (*self.arguments, *self.keywords.values())
        plain = (v for v in values if isinstance(v, str | int | float))
        return tuple(text for text in map(str, plain) if text)

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


def _enrolled(
    call: Call,
    backend: Backend,
    sampling: Sampling,
    *,
    streams: bool = False,
    group: Group | None = None,
) -> Executor:
    executor = Executor(backend, sampling, streams=streams, group=group)
    executor.arguments = call.texts
    enroll(executor)
    return executor


def run_here(call: Call, backend: Backend, sampling: Sampling) -> State:
    """Run a program to its end: a plain body in the calling thread, an async one in the event loop.

    Raises what the body raises, which ends everything it had under way, or else the first failure
    of what it said that it did not read itself. Inside the body of another program a plain one
    returns as soon as its body has: the rest of it goes on, and belongs to the other program's run.
    """
    if call.is_async:
        return _wait_for(start(call, backend, sampling, streams=False))
    outer = _body.get()
    if outer is not None and outer.executor is not None:
        executor = _enrolled(call, backend, sampling, group=outer.executor.group)
        return _run_body(call, State(executor))
    executor = _enrolled(call, backend, sampling)
    ended: Future[Any] = Future()
    outcome = _outcome(executor, ended)
    try:
        state = _run_body(call, State(executor))
    finally:
        ended.set_result(None)
    state.outcome = outcome
    return _wait_for(state)


def _run_body(call: Call, state: State) -> State:
    """Run a body in this thread, and keep what it returns in its state."""
    ended: Future[Any] = Future()
    try:
        with _inside(state.executor):
            ended.set_result(call(state))
    except BaseException:
        state.cancel()
        raise
    state.ended = ended
    return state


def _wait_for(state: State) -> State:
    """Return a state once its run is over. Raises what the run fails with."""
    assert state.outcome is not None
    try:
        wait(state.outcome)
    except BaseException:
        state.cancel()
        raise
    return state


def _outcome(executor: Executor, ended: "Future[Any]") -> "Future[None]":
    """Begin a run; return the promise that it is over, once its body has `ended`.

    It is over when nothing works any more that belongs to it. Its failure is the body's, or else
    the first that nothing has read.
    """
    outcome: Future[None] = Future()
    group = executor.group
    group.open()

    def settle(_: "Future[Any]") -> None:
        executor.settled().add_done_callback(rest)

    def rest(_: "Future[None]") -> None:
        group.idle().add_done_callback(finish)

    def finish(_: "Future[None]") -> None:
        group.close()
        error = ended.exception() or group.failure()
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    ended.add_done_callback(settle)
    return outcome


def start(call: Call, backend: Backend, sampling: Sampling, *, streams: bool) -> State:
    """Start a body in the background and return its state, which ends it when it goes away."""
    executor = _enrolled(call, backend, sampling, streams=streams)
    ended: Future[Any] = Future()
    ended.add_done_callback(lambda _: executor.log.wake())
    executor.body = ended
    outcome = _outcome(executor, ended)
    if call.is_async:
        _start_async(call, executor, ended)
    else:
        body = State(executor, owns=False)
        THREADS.start(lambda: finish(call, body, ended))
    return State(executor, ended=ended, outcome=outcome)


async def run_async(call: Call, backend: Backend, sampling: Sampling) -> State:
    """Run a program to its end without blocking the caller's event loop.

    An async body runs in the caller's loop. Raises like `run_here`; being cancelled ends what the
    program has under way.
    """
    if call.is_async:
        state = await _await_body(call, _enrolled(call, backend, sampling))
    else:
        state = start(call, backend, sampling, streams=False)
    assert state.outcome is not None
    try:
        await arrival(state.outcome)
    except BaseException:
        state.cancel()
        raise
    return state


async def _await_body(call: Call, executor: Executor) -> State:
    """Run an async body in the caller's event loop. Raises what it raises."""
    ended: Future[Any] = Future()
    state = State(executor, ended=ended, outcome=_outcome(executor, ended))
    try:
        with _inside(executor):
            ended.set_result(await call(AsyncState(executor, owns=False)))
    except BaseException as error:
        state.cancel()
        ended.set_exception(error)
        raise
    return state


def _start_async(call: Call, executor: Executor, ended: "Future[Any]") -> None:
    async def body() -> Any:
        with _inside(executor):
            work: Coroutine[Any, Any, Any] = call(AsyncState(executor, owns=False))
            return await work

    def hear(done: "Future[Any]") -> None:
        error = cancelled() if done.cancelled() else done.exception()
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
