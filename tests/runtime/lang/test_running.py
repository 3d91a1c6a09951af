"""Tests of runtime.lang.running: where bodies run, and how they end."""

import asyncio
import contextvars
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from runtime.errors import Aborted, BadRequest
from runtime.lang.running import Call, run_async, run_here, start
from runtime.lang.sampling import Sampling
from runtime.lang.state import AsyncState, State
from runtime.lang.words import gen
from tests.runtime.lang.fake import FakeBackend

WAIT_S = 60.0
NOTHING = Sampling()


def ask(s: State, word: str = "a") -> str:
    s += word + gen("x")
    return s["x"]


async def ask_async(s: AsyncState, word: str = "a") -> str:
    s += word + gen("x")
    return await s["x"]


@pytest.mark.parametrize("function", [ask, ask_async])
def test_both_kinds_of_functions_run_to_their_end(function: object) -> None:
    assert callable(function)
    state = run_here(Call(function, ("ab",)), FakeBackend(), NOTHING)

    assert (state.ret_value, state["x"], state.text()) == ("<2>", "<2>", "ab<2>")


def test_a_body_runs_in_the_thread_that_calls() -> None:
    def where(s: State) -> threading.Thread:
        return threading.current_thread()

    assert run_here(Call(where), FakeBackend(), NOTHING).ret_value is threading.current_thread()


@pytest.mark.parametrize("wait_for_it", [True, False])
def test_a_body_that_raises_ends_its_requests(wait_for_it: bool) -> None:
    backend = FakeBackend()
    backend.hold()

    def broken(s: State) -> None:
        s += gen("x")
        backend.asked.acquire(timeout=WAIT_S)
        raise ZeroDivisionError

    def run() -> None:
        if wait_for_it:
            run_here(Call(broken), backend, NOTHING)
        else:
            _ = start(Call(broken), backend, NOTHING, streams=False).ret_value

    with pytest.raises(ZeroDivisionError):
        run()

    assert backend.ended.acquire(timeout=WAIT_S)
    assert backend.cancelled == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_body_raises_is_why_its_requests_gave_nothing(is_async: bool) -> None:
    backend = FakeBackend()
    backend.hold()

    def broken(s: State) -> None:
        s += gen("x")
        [fork] = s.fork(1)
        fork += gen("y")
        s["fork"] = fork
        raise ZeroDivisionError("mine")

    async def broken_async(s: AsyncState) -> None:
        broken(s)  # pyright: ignore[reportArgumentType]

    call = Call(broken_async if is_async else broken)
    state = start(call, backend, NOTHING, streams=False)

    with pytest.raises(ZeroDivisionError, match="mine"):
        state["x"]
    with pytest.raises(ZeroDivisionError, match="mine"):
        state["fork"].executor.read("y").result(WAIT_S)


def test_a_program_may_run_others() -> None:
    backend = FakeBackend()

    def outer(s: State) -> str:
        inner = run_here(Call(ask, ("abc",)), backend, NOTHING)
        s += inner["x"] + gen("y")
        return s["y"]

    assert start(Call(outer), backend, NOTHING, streams=False).ret_value == "<3>"


@pytest.mark.parametrize("function", [ask, ask_async])
def test_a_program_can_be_awaited_without_blocking_the_loop(function: object) -> None:
    assert callable(function)
    backend = FakeBackend()
    backend.hold()

    async def scenario() -> State:
        task = asyncio.ensure_future(run_async(Call(function), backend, NOTHING))
        while not backend.asked.acquire(blocking=False):
            await asyncio.sleep(0)
        backend.release()
        return await task

    state = asyncio.run(scenario())

    assert (state["x"], state.ret_value) == ("<1>", "<1>")


@pytest.mark.parametrize("function", [ask, ask_async])
def test_cancelling_the_caller_ends_the_request(function: object) -> None:
    assert callable(function)
    backend = FakeBackend()
    backend.hold()

    async def scenario() -> None:
        task = asyncio.ensure_future(run_async(Call(function), backend, NOTHING))
        while not backend.asked.acquire(blocking=False):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())

    assert backend.ended.acquire(timeout=WAIT_S)
    assert backend.cancelled == 1


@pytest.mark.parametrize("function", [ask, ask_async])
@pytest.mark.parametrize("drop", [True, False])
def test_a_program_that_is_dropped_or_cancelled_ends(function: object, drop: bool) -> None:
    assert callable(function)
    backend = FakeBackend()
    backend.hold()
    state = start(Call(function), backend, NOTHING, streams=True)
    ended = state.ended
    assert ended is not None
    assert backend.asked.acquire(timeout=WAIT_S)

    if drop:
        del state
        gc.collect()
    else:
        state.cancel()

    with pytest.raises(Aborted):
        ended.result(WAIT_S)
    assert backend.ended.acquire(timeout=WAIT_S)
    assert backend.cancelled == 1


def test_a_dropped_program_takes_its_forks_along() -> None:
    backend = FakeBackend()
    backend.hold()

    def forking(s: State) -> list[str]:
        forks = s.fork(2)
        forks += gen("x")
        return [fork["x"] for fork in forks]

    state = start(Call(forking), backend, NOTHING, streams=False)
    ended = state.ended
    assert ended is not None
    for _ in range(2):
        assert backend.asked.acquire(timeout=WAIT_S)

    del state
    gc.collect()

    with pytest.raises(Aborted):
        ended.result(WAIT_S)
    for _ in range(2):
        assert backend.ended.acquire(timeout=WAIT_S)
    assert backend.cancelled == 2


def test_a_program_whose_body_is_over_takes_along_the_forks_that_nobody_holds() -> None:
    backend = FakeBackend()
    backend.hold()

    def hasty(s: State) -> State:
        forks = s.fork(1)
        kept = s.fork(1)
        forks += gen("y")
        return kept[0]

    state = start(Call(hasty), backend, NOTHING, streams=False)
    kept = state.ret_value
    kept += "a" + gen("z")
    for _ in range(2):
        assert backend.asked.acquire(timeout=WAIT_S)

    del state
    gc.collect()

    assert backend.ended.acquire(timeout=WAIT_S)
    assert backend.cancelled == 1
    backend.release()
    assert kept["z"] == "<1>"


def test_what_is_said_after_a_run_ends_with_whoever_holds_it() -> None:
    backend = FakeBackend()
    state = run_here(Call(ask), backend, NOTHING)
    backend.hold()
    forks = state.fork(1)
    forks += gen("y")
    for _ in range(2):
        assert backend.asked.acquire(timeout=WAIT_S)

    del forks
    gc.collect()

    for _ in range(2):
        assert backend.ended.acquire(timeout=WAIT_S)
    assert backend.cancelled == 1


def test_an_exit_inside_a_body_ends_nothing_else() -> None:
    def leave(s: State) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        _ = start(Call(leave), FakeBackend(), NOTHING, streams=False).ret_value
    again = start(Call(ask), FakeBackend(), NOTHING, streams=False)
    assert again.ret_value == "<1>"


def steps(s: State, inner: Call, backend: FakeBackend) -> None:
    for _ in range(3):
        s += run_here(inner, backend, NOTHING)["x"]


def steps_at_once(s: State, inner: Call, backend: FakeBackend) -> None:
    s["state"] = start(inner, backend, NOTHING, streams=True)
    _ = s["state"]["x"]
    steps(s, inner, backend)


def steps_in_a_loop(s: State, inner: Call, backend: FakeBackend) -> None:
    async def step() -> None:
        await asyncio.gather(*(run_async(inner, backend, NOTHING) for _ in range(1)))

    asyncio.run(step())
    asyncio.run(step())


async def steps_async(s: AsyncState, inner: Call, backend: FakeBackend) -> None:
    work = asyncio.ensure_future(run_async(inner, backend, NOTHING))
    await asyncio.shield(work)
    await run_async(inner, backend, NOTHING)


@pytest.mark.parametrize("inner", [ask, ask_async])
@pytest.mark.parametrize("outer", [steps, steps_at_once, steps_in_a_loop, steps_async])
def test_cancelling_a_program_ends_those_it_runs_and_starts_no_more(
    outer: Callable[..., Any], inner: Callable[..., Any]
) -> None:
    backend = FakeBackend()
    backend.hold()
    state = start(Call(outer, (Call(inner), backend)), backend, NOTHING, streams=False)
    ended = state.ended
    assert ended is not None
    assert backend.asked.acquire(timeout=WAIT_S)

    state.cancel()

    with pytest.raises(Aborted):
        ended.result(WAIT_S)
    assert backend.ended.acquire(timeout=WAIT_S)
    assert (backend.cancelled, len(backend.prompts)) == (1, 1)


def test_what_begins_after_a_body_belongs_to_nobody() -> None:
    backend = FakeBackend()
    held: list[contextvars.Context] = []

    def outer(s: State) -> None:
        held.append(contextvars.copy_context())

    state = start(Call(outer), backend, NOTHING, streams=False)
    assert state.ret_value is None
    state.cancel()

    later = held[0].run(run_here, Call(ask), backend, NOTHING)
    assert later.ret_value == "<1>"


def test_a_program_goes_on_with_others_after_a_failure_of_its_own() -> None:
    backend = FakeBackend()

    def outer(s: State) -> str:
        backend.error = BadRequest("no")
        s += gen("x")
        assert isinstance(s.error(), BadRequest)
        backend.error = None
        return run_here(Call(ask), backend, NOTHING)["x"]

    assert start(Call(outer), backend, NOTHING, streams=False).ret_value == "<1>"


def test_what_a_failing_program_had_run_stays_readable() -> None:
    backend, kept = FakeBackend(), list[State]()

    def outer(s: State) -> None:
        kept.append(run_here(Call(ask), backend, NOTHING))
        kept[0].sync()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_here(Call(outer), backend, NOTHING)
    assert (kept[0].text(), kept[0].error()) == ("a<1>", None)
