"""Tests of runtime.lang.batch: many programs at once."""

import hashlib
import threading
from collections.abc import Generator
from typing import Any

import pytest

from runtime.errors import Aborted
from runtime.lang.bodies import MAX_THREADS
from runtime.lang.loop import LOOP
from runtime.lang.program import function
from runtime.lang.running import Call, start
from runtime.lang.state import State
from runtime.lang.words import gen, select
from tests.runtime.lang.fake import FakeBackend
from tests.runtime.lang.three_backends import NAMES, Model, make_backend

WAIT_S = 60.0


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


@function
def agent(s: State, k: int) -> str:
    """Branch on what the model says."""
    s += f"task {k}: " + gen("plan")
    if int(s["plan"], 16) % 2:
        s += " odd: " + select("way", ["left", "right"])
        s += s["way"] + gen("more")
        return s["more"]
    forks = s.fork(2)
    forks += lambda i: f" part {i}: " + gen("part")
    forks.join()
    return "".join(s["part"])


def test_a_thousand_programs_at_once_end_as_one_by_one() -> None:
    backend = FakeBackend(digest)
    batch = [{"k": k} for k in range(1000)]
    before = threading.active_count()
    backend.hold()

    def release_when_all_wait() -> None:
        for _ in batch:
            backend.asked.acquire(timeout=WAIT_S)
        backend.release()

    releasing = threading.Thread(target=release_when_all_wait)
    releasing.start()
    together = [s.ret_value for s in agent.run_batch(batch, backend=backend)]
    releasing.join()
    threads = threading.active_count() - before
    alone = [agent.run(one["k"], backend=backend).ret_value for one in batch]

    assert together == alone
    assert backend.most >= 1000
    assert threads <= MAX_THREADS + 2, "those of bodies, of the loop, and of tqdm's monitor"


def test_no_more_run_at_once_than_asked() -> None:
    backend = FakeBackend(digest)
    backend.hold()

    def release_when_three_wait() -> None:
        for _ in range(3):
            backend.asked.acquire(timeout=WAIT_S)
        backend.release()

    releasing = threading.Thread(target=release_when_three_wait)
    releasing.start()
    agent.run_batch([{"k": k} for k in range(40)], num_threads=3, backend=backend)
    releasing.join()

    assert 3 <= backend.most <= 6  # three programs, of which each may have two forks


def test_one_program_that_fails_may_leave_the_others_alone() -> None:
    @function
    def fragile(s: State, k: int) -> str:
        s += f"{k}" + gen("x")
        if k == 1:
            raise ZeroDivisionError
        return s["x"]

    entries = [{"k": k} for k in range(3)]
    states = fragile.run_batch(entries, backend=FakeBackend(), raise_errors=False)

    assert [type(state.error()) for state in states] == [
        type(None),
        ZeroDivisionError,
        type(None),
    ]
    assert states[2].ret_value == "<1>"
    with pytest.raises(ZeroDivisionError):
        states[1].text()


def test_closing_the_iterator_ends_what_still_runs() -> None:
    backend, answered = FakeBackend(), threading.Event()

    @function
    def ask(s: State, k: int) -> None:
        if k:
            answered.wait(WAIT_S)
            backend.hold()
        s += gen("x")
        if not k:
            s.sync()
            answered.set()

    states = ask.run_batch([{"k": k} for k in range(4)], generator_style=True, backend=backend)
    assert isinstance(states, Generator)
    first = next(states)
    for _ in range(4):
        assert backend.asked.acquire(timeout=WAIT_S)
    states.close()
    for _ in range(4):
        assert backend.ended.acquire(timeout=WAIT_S)

    assert first["x"] == "<0>"
    assert backend.cancelled == 3


def test_a_batch_may_run_inside_a_program() -> None:
    backend = FakeBackend(digest)

    @function
    def outer(s: State) -> list[str]:
        return [x.ret_value for x in agent.run_batch([{"k": 1}, {"k": 2}], backend=backend)]

    [state] = outer.run_batch([{}], backend=backend)

    assert state.ret_value == [agent.run(k=k, backend=backend).ret_value for k in (1, 2)]


def test_the_common_beginning_is_computed_once_before_anything_runs() -> None:
    backend = FakeBackend()
    beginning = "A long introduction that every one of the programs begins with, word for word. "

    @function
    def ask(s: State, question: str) -> None:
        s += beginning + question + gen("x")

    ask.run_batch([{"question": "why"}, {"question": "how"}], backend=backend)
    ask.run_batch([{"question": "why"}], backend=backend)

    assert backend.cached == [beginning]


def test_progress_is_shown_on_request_only(capsys: pytest.CaptureFixture[str]) -> None:
    agent.run_batch([{"k": 1}], backend=FakeBackend(digest))
    assert capsys.readouterr().err == ""

    agent.run_batch([{"k": 1}, {"k": 2}], backend=FakeBackend(digest), progress_bar=True)
    assert "2/2" in capsys.readouterr().err


def test_a_cancelled_program_of_a_batch_says_so() -> None:
    @function
    def stop(s: State) -> None:
        s += gen("x")
        s.cancel()

    backend = FakeBackend()
    backend.hold()
    [state] = stop.run_batch([{}], backend=backend, raise_errors=False)

    assert isinstance(state.error(), Aborted)
    with pytest.raises(Aborted, match=r"batch\[0\]: the program was cancelled"):
        stop.run_batch([{}], backend=backend)


def test_closing_the_iterator_ends_a_program_that_is_just_being_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, starting, closed = FakeBackend(), threading.Event(), threading.Event()
    backend.hold()
    ended: list[Any] = []

    def slow(call: Call, *arguments: Any, **keywords: Any) -> State:
        state = start(call, *arguments, **keywords)
        if ended:
            starting.set()
            closed.wait(WAIT_S)
        ended.append(state.ended)
        return state

    @function
    def ask(s: State, k: int) -> None:
        if k:
            s += gen("x")
            s.sync()

    monkeypatch.setattr("runtime.lang.batch.start", slow)
    entries = [{"k": k} for k in range(2)]
    states = ask.run_batch(entries, generator_style=True, num_threads=1, backend=backend)
    assert isinstance(states, Generator)
    next(states)
    assert starting.wait(WAIT_S)
    states.close()
    closed.set()
    # What follows in the event loop follows the start.
    LOOP.submit(backend.aflush_cache()).result(WAIT_S)

    with pytest.raises(Aborted):
        ended[1].result(5)


def test_many_programs_that_end_at_once_stand_beside_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start_and_end(*arguments: Any, **keywords: Any) -> State:
        state = start(*arguments, **keywords)
        assert state.ended is not None
        state.ended.result(WAIT_S)
        return state

    @function
    def nothing(s: State, k: int) -> int:
        return k

    monkeypatch.setattr("runtime.lang.batch.start", start_and_end)
    entries = [{"k": k} for k in range(1200)]
    states = nothing.run_batch(entries, num_threads=1, backend=FakeBackend())

    assert [state.ret_value for state in states] == list(range(1200))


@pytest.mark.parametrize("name", NAMES)
def test_as_many_bodies_as_asked_for_may_block_at_once(name: str) -> None:
    count = MAX_THREADS + 8
    together = threading.Barrier(count)

    @function
    def block(s: State, k: int) -> None:
        together.wait(WAIT_S)
        s += f"{k}" + gen("x")

    batch, backend = [{"k": k} for k in range(count)], make_backend(name, Model())

    states = block.run_batch(batch, num_threads=count, trace=False, backend=backend)

    assert [s.text()[: len(str(k))] for k, s in enumerate(states)] == [str(k) for k in range(count)]
