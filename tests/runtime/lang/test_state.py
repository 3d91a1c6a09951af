"""Tests of runtime.lang.state: reading, streaming, failing."""

import asyncio

import pytest

from runtime.errors import BadRequest
from runtime.lang.executor import Executor
from runtime.lang.running import Call, start
from runtime.lang.sampling import Sampling
from runtime.lang.state import AsyncState, State
from runtime.lang.words import gen, user
from tests.runtime.lang.fake import FakeBackend


def streaming(backend: FakeBackend, body: object) -> State:
    assert callable(body)
    return start(Call(body), backend, Sampling(), streams=True)


def two_words(s: State) -> str:
    s += "a" + gen("x") + "b" + gen("y")
    return s["y"]


def test_reading_waits_for_what_was_said_before() -> None:
    state = State(Executor(FakeBackend(), Sampling()))
    state += "a" + gen("x")

    assert state["x"] == state.get_var("x") == "<1>"
    assert state.get_meta_info("x") == {"prompt": "a"}
    assert state.text() == "a<1>"
    assert state.messages() == []
    assert state.error() is None
    with pytest.raises(KeyError):
        state["never"]


def test_errors_are_raised_where_the_value_is_read() -> None:
    backend = FakeBackend()
    backend.error = BadRequest("no")
    state = State(Executor(backend, Sampling()))
    state += gen("x")

    assert isinstance(state.error(), BadRequest)
    for read in (lambda: state["x"], state.text, state.sync, lambda: state.get_meta_info("x")):
        with pytest.raises(BadRequest, match="no"):
            read()


def test_a_stream_gives_all_text_or_one_variable() -> None:
    backend = FakeBackend()

    everything = list(streaming(backend, two_words).text_iter())
    one = list(streaming(backend, two_words).text_iter("y"))

    assert everything == ["a", "<", "1", ">", "b", "<", "5", ">"]
    assert one == ["<", "5", ">"]


def test_a_stream_goes_on_after_a_body_that_waits_for_nothing() -> None:
    def hasty(s: State) -> None:
        s += "a" + gen("x")

    backend = FakeBackend()
    backend.hold()
    state = streaming(backend, hasty)
    assert state.ret_value is None
    backend.release()

    assert "".join(state.text_iter()) == "a<1>"
    assert state.text() == "a<1>"


def test_a_streaming_state_can_be_read_before_the_body_said_anything() -> None:
    backend = FakeBackend()
    backend.hold()
    state = streaming(backend, two_words)
    pieces = state.text_iter()
    assert next(pieces) == "a"
    backend.release()

    assert (state["y"], state.ret_value) == ("<5>", "<5>")
    assert "".join(pieces) == "<1>b<5>"


def test_a_name_that_never_comes_is_a_key_error_once_the_body_is_over() -> None:
    state = streaming(FakeBackend(), two_words)

    with pytest.raises(KeyError):
        state["never"]


def test_a_body_that_fails_says_so_to_every_reader() -> None:
    def broken(s: State) -> None:
        s += "a" + gen("x")
        raise ZeroDivisionError("mine")

    for read in (
        lambda s: s["never"],
        lambda s: s.text(),
        lambda s: s.ret_value,
        lambda s: list(s.text_iter()),
    ):
        with pytest.raises(ZeroDivisionError, match="mine"):
            read(streaming(FakeBackend(), broken))


def test_a_stream_ends_with_what_went_wrong() -> None:
    backend = FakeBackend()
    backend.error = BadRequest("no")
    pieces = streaming(backend, two_words).text_iter()

    assert next(pieces) == "a"
    with pytest.raises(BadRequest, match="no"):
        next(pieces)


def test_a_stream_can_be_read_in_any_event_loop() -> None:
    async def read() -> list[str]:
        state = streaming(FakeBackend(), two_words)
        return [piece async for piece in state.text_async_iter("x")]

    assert asyncio.run(read()) == ["<", "1", ">"]


def test_the_text_of_a_state_without_a_body_is_what_was_said_so_far() -> None:
    state = State(Executor(FakeBackend(), Sampling()))
    state += "a" + gen("x")
    [fork] = state.fork(1)
    fork += "b"

    assert list(state.text_iter()) == ["a", "<1>"]
    assert list(fork.text_iter()) == ["a", "<1>", "b"]


def test_an_async_state_is_awaited() -> None:
    async def scenario() -> None:
        state = AsyncState(Executor(FakeBackend(), Sampling()))
        state += user("hi")
        with state.assistant():
            state += gen("x")
        assert await state["x"] == await state.get_var("x") == "<11>"
        assert await state.get_meta_info("x") == {"prompt": "[user]hi..."}
        assert await state.text() == "hi<11>"
        assert len(await state.messages()) == 2
        assert [piece async for piece in state.text_async_iter()] == ["hi", "<11>"]
        [fork] = state.fork(1)
        await fork.sync()
        with pytest.raises(KeyError):
            await state["never"]

    asyncio.run(scenario())


def test_a_stream_can_be_read_with_what_the_backend_tells() -> None:
    async def read(name: str | None) -> list[tuple[str, object]]:
        state = streaming(FakeBackend(), two_words)
        return [pair async for pair in state.text_async_iter(name, return_meta_data=True)]

    one, everything = asyncio.run(read("x")), asyncio.run(read(None))

    assert one == [("<", None), ("1", None), (">", None), ("", {"streamed": True})]
    assert "".join(text for text, _ in everything) == "a<1>b<5>"


def test_a_state_that_is_finished_gives_all_facts_at_once() -> None:
    state = State(Executor(FakeBackend(), Sampling()))
    state += "a" + gen("x")

    async def read() -> list[tuple[str, object]]:
        return [pair async for pair in state.text_async_iter("x", return_meta_data=True)]

    assert asyncio.run(read()) == [("<1>", {"prompt": "a"})]


def test_a_printed_state_is_its_text_and_what_went_wrong() -> None:
    backend = FakeBackend()
    state = State(Executor(backend, Sampling()))
    state += "a" + gen("x")
    assert str(state) == "a<1>"
    assert repr(state) == "State('a<1>')"

    backend.error = BadRequest("no")
    state += gen("y")

    assert str(state) == 'a<1>[BadRequest: gen("y"): no]'
    assert repr(state) == "State('a<1>', BadRequest: gen(\"y\"): no)"
    with pytest.raises(BadRequest):
        state.sync()
    assert repr(AsyncState(Executor(backend, Sampling()))) == "AsyncState('')"
