"""Tests of runtime.lang.trace: what programs begin with."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from runtime.lang.program import Program, function
from runtime.lang.prompt import Prompt, Turn
from runtime.lang.running import Call
from runtime.lang.state import AsyncState, State
from runtime.lang.trace import common_prefix
from runtime.lang.words import assistant, gen, select, system, user, user_begin, user_end
from tests.runtime.lang.fake import FakeBackend
from tests.runtime.lang.three_backends import NAMES, Model, make_backend

LONG = "This text is long enough to be worth computing it once, before all programs run. "


def prefix_of(function: Callable[..., Any], *batch: dict[str, Any]) -> Prompt | None:
    return common_prefix([Call(function, (), one) for one in batch], FakeBackend())


def test_constant_text_up_to_the_first_argument_is_common() -> None:
    def program(s: State, q: str) -> None:
        s += LONG + f"Question: {q}\n" + gen("x")

    assert prefix_of(program, {"q": "a"}, {"q": "b"}) == Prompt(pieces=(LONG + "Question: ",))


def test_arguments_that_all_programs_share_are_constant_too() -> None:
    def program(s: State, shots: list[str], q: str) -> None:
        for shot in shots:
            s += shot
        s += "Q: " + q + gen("x")

    shots = [LONG, "more"]

    assert prefix_of(program, {"shots": shots, "q": "a"}, {"shots": shots, "q": "b"}) == Prompt(
        pieces=(LONG + "moreQ: ",)
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda s, q: s.__iadd__(gen("x")),
        lambda s, q: s.__iadd__(select("x", ["a", "b"])),
        lambda s, q: s["x"],
        lambda s, q: s.text(),
        lambda s, q: s.fork(2),
        lambda s, q: q.strip(),
        lambda s, q: len(q),
        lambda s, q: q == "a",
        lambda s, q: "a" if q else "b",
        lambda s, q: list(q),
        lambda s, q: s.__iadd__(q),
        lambda s, q: " ".join([q]),
        lambda s, q: int(q),
    ],
)
def test_what_a_placeholder_cannot_do_ends_the_common_part(use: Callable[..., Any]) -> None:
    def program(s: State, q: str) -> None:
        s += LONG
        use(s, q)
        s += "never reached"

    assert prefix_of(program, {"q": "a"}, {"q": "b"}) == Prompt(pieces=(LONG,))


def test_of_a_chat_whole_turns_are_common() -> None:
    def program(s: State, q: str) -> None:
        s += system(LONG)
        s += user("Now: " + q)
        s += assistant(gen("x"))

    assert prefix_of(program, {"q": "a"}, {"q": "b"}) == Prompt(
        turns=(Turn("system", LONG),), open=False
    )


def test_of_an_open_turn_a_long_beginning_is_common() -> None:
    def program(s: State, q: str) -> None:
        s += user_begin() + LONG
        s += q + user_end() + assistant(gen("x"))

    assert prefix_of(program, {"q": "a"}, {"q": "b"}) == Prompt(
        turns=(Turn("user", LONG),), open=False, unfinished=True
    )


def test_a_function_that_assigns_outer_variables_is_not_traced() -> None:
    count = 0

    def program(s: State, q: str) -> None:
        nonlocal count
        count += 1
        s += LONG + q + gen("x")

    assert prefix_of(program, {"q": "a"}, {"q": "b"}) is None
    assert count == 0


def test_a_placeholder_shows_no_control_characters() -> None:
    shown: list[str] = []

    def program(s: State, q: str) -> None:
        shown.append(f"{q}")
        s += LONG + q + gen("x")

    prefix_of(program, {"q": "a"}, {"q": "b"})

    assert shown[0].startswith("<placeholder ")
    assert shown[0].isprintable()


@pytest.mark.parametrize("name", NAMES)
def test_tracing_is_turned_off_by_function_and_by_batch(name: str) -> None:
    backend, runs = make_backend(name, Model()), list[str]()

    def program(s: State, q: str) -> None:
        runs.append(f"{q}")
        s += LONG + q + gen("x")

    batch, on, off = [{"q": "a"}, {"q": "b"}], function(program), function(trace=False)(program)

    def runs_of(made: Program, **given: bool) -> int:
        runs.clear()
        made.run_batch(batch, backend=backend, **given)
        return len(runs)

    assert runs_of(on) == runs_of(off, trace=True) == 3
    assert runs_of(off) == runs_of(off.bind()) == runs_of(on, trace=False) == 2


def test_a_batch_inside_a_program_is_traced_without_effects() -> None:
    backend, slept = FakeBackend(), list[str]()

    @function
    def inner(s: State, q: str) -> None:
        s += LONG
        time.sleep(0)
        slept.append(q)
        s += q + gen("x")

    @function
    def outer(s: State, k: int) -> None:
        inner.run_batch([{"q": "a"}, {"q": "b"}], backend=backend)

    outer.run_batch([{"k": 1}, {"k": 2}], backend=backend)

    assert sorted(slept) == ["a", "a", "b", "b"]
    assert backend.cached[0] == LONG


def test_async_programs_are_traced_too() -> None:
    async def program(s: AsyncState, q: str) -> None:
        s += LONG
        await s["x"]

    assert prefix_of(program, {"q": "a"}, {"q": "b"}) == Prompt(pieces=(LONG,))


def test_an_interrupt_while_tracing_is_no_program_error() -> None:
    def program(s: State, q: str) -> None:
        s += LONG
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prefix_of(program, {"q": "a"}, {"q": "b"})


def test_programs_of_different_shapes_have_nothing_in_common() -> None:
    def program(s: State, *questions: str) -> None:
        s += LONG + "".join(questions)

    calls = [Call(program, ("a",)), Call(program, ("a", "b"))]

    assert common_prefix(calls, FakeBackend()) is None


def test_a_short_beginning_is_not_worth_it() -> None:
    def program(s: State, q: str) -> None:
        s += "short " + q

    assert prefix_of(program, {"q": "a"}, {"q": "b"}) is None


def test_a_program_inside_ends_the_common_part_and_does_not_run() -> None:
    backend = FakeBackend()

    @function
    def inner(s: State, q: str) -> None:
        s += LONG + q + gen("x")

    @function
    async def inner_async(s: AsyncState, q: str) -> None:
        s += LONG + q + gen("x")

    def runs(s: State, q: str) -> None:
        s += LONG + inner.run(q, backend=backend)["x"]

    def runs_async(s: State, q: str) -> None:
        s += LONG + inner_async.run(q, backend=backend)["x"]

    def runs_many(s: State, q: str) -> None:
        s += LONG
        inner.run_batch([(q,), (q,)], backend=backend)

    def starts(s: State, q: str) -> None:
        s += LONG
        inner.stream(q, backend=backend)

    async def awaits(s: AsyncState, q: str) -> None:
        s += LONG
        await inner.arun(q, backend=backend)

    async def awaits_async(s: AsyncState, q: str) -> None:
        s += LONG
        await inner_async.arun(q, backend=backend)

    for program in (runs_many, starts, awaits, awaits_async):
        assert prefix_of(program, {"q": "a"}, {"q": "b"}) == Prompt(pieces=(LONG,))
    for program in (runs, runs_async):
        assert prefix_of(program, {"q": "a"}, {"q": "b"}) is None
    assert backend.prompts == backend.cached == []
