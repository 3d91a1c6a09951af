"""What a batch fails with, and what becomes of its other programs."""

import threading
import time
from typing import Any

import pytest

from runtime.errors import BadRequest
from runtime.lang.backend import Backend
from runtime.lang.program import function
from runtime.lang.state import State
from runtime.lang.words import gen
from tests.runtime.lang.fake import FakeBackend
from tests.runtime.lang.three_backends import NAMES, Model, make_backend

WAIT_S = 60.0
HOT = 9


@pytest.fixture
def model() -> Model:
    """What answers each prompt with its length."""
    return Model()


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest, model: Model) -> Backend:
    """Each of the three."""
    return make_backend(request.param, model)


@function
def item(s: State, k: int, bad: int) -> int:
    """Say one thing; entry `bad` is refused."""
    s += f"{k}:" + gen("x", temperature=HOT if k == bad else 0)
    return k


def test_a_batch_that_raises_names_the_entry(backend: Backend, model: Model) -> None:
    entries = [{"k": k, "bad": 3} for k in range(6)]

    with pytest.raises(BadRequest, match=r'^batch\[3\]: gen\("x"\): temperature'):
        item.run_batch(entries, backend=backend, num_threads=1)

    assert model.prompts == ["0:", "1:", "2:"], "none is started after the failure"


def test_a_lazy_batch_gives_what_came_before_the_failure(backend: Backend) -> None:
    entries = [{"k": k, "bad": 3} for k in range(6)]
    seen: list[int] = []

    states = item.run_batch(entries, backend=backend, generator_style=True)

    def read() -> None:
        for state in states:
            seen.append(state.ret_value)

    with pytest.raises(BadRequest, match=r"^batch\[3\]"):
        read()

    assert seen == [0, 1, 2]


def test_a_batch_may_keep_failures_in_its_states(backend: Backend) -> None:
    entries = [{"k": k, "bad": 1} for k in range(3)]

    states = item.run_batch(entries, backend=backend, raise_errors=False)

    assert [isinstance(state.error(), BadRequest) for state in states] == [False, True, False]
    assert states[2]["x"] == "<2>"
    with pytest.raises(BadRequest, match=r'^gen\("x"\)'):
        states[1].text()


def test_a_failure_ends_the_rest_of_the_batch_before_it_is_raised() -> None:
    backend, ended = FakeBackend(), list[int]()
    backend.hold()

    @function
    def ask(s: State, k: int) -> None:
        if k == 0:
            for _ in range(3):
                assert backend.asked.acquire(timeout=WAIT_S)
            raise ZeroDivisionError("mine")
        s += gen("x")
        try:
            s.sync()
        finally:
            time.sleep(0.05)
            ended.append(k)

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        ask.run_batch([{"k": k} for k in range(4)], backend=backend)

    assert caught.value.__notes__ == ["in batch[0]"]
    assert (backend.cancelled, backend.running) == (3, 0)
    assert sorted(ended) == [1, 2, 3]


def test_a_lazy_batch_finishes_the_entries_before_the_failure() -> None:
    backend, failed = FakeBackend(), threading.Event()
    backend.hold()

    @function
    def ask(s: State, k: int) -> int:
        if k == 1:
            for _ in range(2):
                assert backend.asked.acquire(timeout=WAIT_S)
            failed.set()
            raise ZeroDivisionError("mine")
        s += gen("x")
        s.sync()
        return k

    states = iter(
        ask.run_batch([{"k": k} for k in range(3)], generator_style=True, backend=backend)
    )
    results: list[Any] = []
    reading = threading.Thread(target=lambda: results.append(next(states).ret_value))
    reading.start()
    assert failed.wait(WAIT_S)
    assert backend.ended.acquire(timeout=WAIT_S), "entry 2 is ended at once"
    backend.release()
    reading.join(WAIT_S)

    assert results == [0]
    with pytest.raises(ZeroDivisionError, match="mine"):
        next(states)
    assert backend.cancelled == 1


def test_a_progress_bar_counts_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    @function
    def ask(s: State, k: int) -> None:
        if k:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask.run_batch(
            [{"k": k} for k in range(3)],
            backend=FakeBackend(),
            num_threads=1,
            progress_bar=True,
        )

    shown = capsys.readouterr().err
    assert "1/3" in shown
    assert "3/3" not in shown
