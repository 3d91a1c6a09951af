"""Tests of what `runtime.lang` offers: its names, and programs in the style of `sglang.lang`.

The programs are new; what they use is what SGLang's users write.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.lang.state import State
from tests.runtime.lang.fake import FakeBackend

sgl: Any = importlib.import_module("runtime.lang")

NAMES = """
AsyncState Backend Endpoint Local OpenAI Program RuntimeEndpoint State assistant assistant_begin
assistant_end flush_cache function gen gen_int gen_string get_server_info global_config
greedy_token_selection image select set_default_backend system system_begin system_end
token_length_normalized unconditional_likelihood_normalized user user_begin user_end video
REGEX_BOOL REGEX_FLOAT REGEX_INT REGEX_STR
"""


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    """The default backend of a test."""
    backend = FakeBackend()
    sgl.set_default_backend(backend)
    yield backend
    sgl.set_default_backend(None)


def test_the_public_names_are_these() -> None:
    assert sorted(sgl.__all__) == sorted(NAMES.split())
    assert all(hasattr(sgl, name) for name in sgl.__all__)
    assert sgl.RuntimeEndpoint is sgl.Endpoint


@sgl.function
def interview(s: State, first: str, second: str) -> None:
    """Ask two questions."""
    s += sgl.system("You answer briefly.")
    s += sgl.user(first)
    s += sgl.assistant(sgl.gen("a", max_tokens=16))
    s += sgl.user_begin() + second + sgl.user_end()
    s += sgl.assistant_begin()
    s += sgl.gen("b", max_tokens=16, stop="\n")
    s += sgl.assistant_end()


@sgl.function
def outline(s: State, topic: str) -> None:
    """Choose a tool, then branch."""
    s += "Topic: " + topic + "\n"
    s += "Tool: " + sgl.gen("tool", choices=["pen", "map"]) + "\n"
    if s["tool"] == "map":
        s += "Where: " + sgl.gen("where", 8)
    forks = s.fork(2)
    for number, fork in enumerate(forks):
        fork += f"Point {number}: "
        fork += sgl.gen("point", max_tokens=8, stop=".")
    s += "Points: " + forks[0]["point"] + ", " + forks[1]["point"]
    s += sgl.select("good", choices=["a", "b"], choices_method=sgl.greedy_token_selection)


def test_turns_of_a_chat(backend: FakeBackend) -> None:
    state = interview.run(first="Who?", second="Why?")

    assert [(m["role"], m["content"]) for m in state.messages()] == [
        ("system", "You answer briefly."),
        ("user", "Who?"),
        ("assistant", state["a"]),
        ("user", "Why?"),
        ("assistant", state["b"]),
    ]
    assert backend.prompts[0] == "[system]You answer briefly.[user]Who?..."


def test_choosing_branching_and_reading(backend: FakeBackend) -> None:
    state = outline.run(topic="rivers", temperature=0.1)

    assert (state["tool"], state["good"]) == ("map", "b")
    assert "where" in state
    assert "Points: <" in state.text()
    assert len(backend.cached) == 1


def test_batches_streams_and_iterators(backend: FakeBackend) -> None:
    states = outline.run_batch(
        [{"topic": "a"}, {"topic": "b"}], progress_bar=False, num_threads="auto", temperature=0
    )
    assert [state["tool"] for state in states] == ["map", "map"]
    streaming = interview.run(first="Who?", second="Why?", stream=True)
    assert "".join(streaming.text_iter()) == State.text(interview.run(first="Who?", second="Why?"))
    assert "".join(streaming.text_iter("b")) == streaming["b"]
