"""Tests of runtime.lang.program."""

import asyncio
from typing import Any

import pytest

from runtime.lang.program import Program, function
from runtime.lang.sampling import Sampling
from runtime.lang.state import AsyncState, State
from runtime.lang.words import assistant, gen, user
from tests.runtime.lang.fake import FakeBackend


@function
def greet(s: State, name: str, mark: str = "!") -> None:
    """Greet somebody."""
    s += "Hello " + name + mark + gen("x", max_tokens=3)


def test_arguments_and_sampling_are_told_apart() -> None:
    backend = FakeBackend()

    greet.run("Ann", mark="?", temperature=0.5, max_new_tokens=9, backend=backend).sync()

    assert backend.prompts == ["Hello Ann?"]
    assert backend.samplings == [Sampling(max_tokens=3, temperature=0.5)]


def test_a_parameter_wins_over_a_sampling_field_of_its_name() -> None:
    @function
    def halt(s: State, stop: str) -> None:
        s += stop + gen("x")

    backend = FakeBackend()
    halt.run(stop="red", backend=backend).sync()

    assert (backend.prompts, backend.samplings) == (["red"], [Sampling()])


def test_arguments_that_do_not_fit_are_refused_at_once() -> None:
    wrongs: list[dict[str, Any]] = [{}, {"name": "a", "nme": "b"}]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            greet.run(backend=FakeBackend(), **wrong)
        with pytest.raises(TypeError):
            greet.run_batch([wrong], backend=FakeBackend())


def test_bound_arguments_are_given() -> None:
    backend = FakeBackend()
    bound = greet.bind(mark="...")

    bound(name="Bob", backend=backend).sync()

    assert isinstance(bound, Program)
    assert backend.prompts == ["Hello Bob..."]
    assert (bound.__name__, bound.__doc__) == ("greet", "Greet somebody.")


def test_a_stream_is_read_while_it_runs() -> None:
    state = greet.stream("Ann", backend=FakeBackend())

    assert list(state.text_iter("x")) == ["<", "1", "0", ">"]


def test_a_program_can_be_awaited() -> None:
    state = asyncio.run(greet.arun("Ann", backend=FakeBackend()))

    assert state["x"] == "<10>"


def test_a_batch_takes_dictionaries_and_tuples() -> None:
    backend = FakeBackend()
    batch: list[Any] = [{"name": "a"}, ("b", "?"), {"name": "c", "temperature": 0.25}]

    states = greet.run_batch(batch, backend=backend, temperature=0.5)
    lazily = greet.run_batch(batch, backend=backend, generator_style=True, num_threads=2)

    texts = ["Hello a!<8>", "Hello b?<8>", "Hello c!<8>"]
    assert [state.text() for state in states] == texts
    assert {s.temperature for s in backend.samplings} == {0.5, 0.25}
    assert not isinstance(lazily, list)
    assert [state.text() for state in lazily] == texts
    with pytest.raises(ValueError, match="num_threads"):
        greet.run_batch([], num_threads=0, backend=backend)


def test_async_programs_run_in_batches_too() -> None:
    @function
    async def twice(s: AsyncState, word: str) -> str:
        s += word + gen("x")
        s += await s["x"] + gen("y")
        return await s["y"]

    states = twice.run_batch([{"word": "a"}, {"word": "bc"}], backend=FakeBackend())

    assert [state.ret_value for state in states] == ["<7>", "<8>"]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_async_program_reads_all_of_one_that_it_awaited(is_async: bool) -> None:
    def ask(s: State) -> None:
        s += user("hi")
        s += assistant(gen("x"))

    async def ask_async(s: AsyncState) -> None:
        ask(s)  # pyright: ignore[reportArgumentType]

    inner = function(ask_async if is_async else ask)

    @function
    async def outer(s: AsyncState) -> list[Any]:
        state = await inner.arun(backend=backend)
        state.sync()
        return [state.text(), state.messages(), state.error(), "".join(state.text_iter())]

    backend = FakeBackend(lambda text: "yes")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]

    assert outer.run(backend=backend).ret_value == ["hiyes", messages, None, "hiyes"]


def test_the_decorator_may_be_called() -> None:
    def say(s: State, text: str) -> None:
        s += text

    programs = [function(say), function()(say), function(num_api_spec_tokens=64)(say)]

    assert [p.run("a", backend=FakeBackend()).text() for p in programs] == ["a"] * 3
    assert function(say, num_api_spec_tokens=64).__name__ == "say"


def test_a_program_has_its_function() -> None:
    assert greet.func is greet.function
    assert greet.func.__name__ == "greet"


def test_a_program_is_cached_up_to_the_first_argument_that_is_not_bound() -> None:
    @function
    def ask(s: State, shots: str, question: str) -> None:
        s += shots + "Q: " + question + gen("x")

    shots = "Q: Where does Anna live?\nA: Anna lives in Rome.\n" * 2
    backend = FakeBackend()
    ask.bind(shots=shots).cache(backend)
    ask.cache(backend)

    assert backend.cached == [shots + "Q: "]
