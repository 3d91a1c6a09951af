"""Tests of runtime.lang.writing; streams are in test_state.py."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runtime.errors import RequestFailed
from runtime.lang.backend import Backend, Generation, Piece
from runtime.lang.loop import LOOP
from runtime.lang.prompt import Prompt
from runtime.lang.sampling import Sampling
from runtime.lang.writing import write
from tests.runtime.lang.fake import FakeBackend

WAIT_S = 60.0
PROMPT = Prompt(pieces=("a",))


def written(
    backend: Backend, sampling: Sampling, *, streams: bool
) -> tuple[list[Generation], list[tuple[str, Any]]]:
    """Return what was written, and what was published."""
    published: list[tuple[str, Any]] = []

    def publish(text: str, facts: Any) -> None:
        published.append((text, facts))

    work = write(backend, PROMPT, sampling, publish, streams=streams)
    return LOOP.submit(work).result(WAIT_S), published


def test_one_text_is_published_piece_by_piece_and_several_are_not() -> None:
    backend = FakeBackend()

    one, pieces = written(backend, Sampling(), streams=True)
    two, whole = written(backend, Sampling(n=2), streams=True)

    assert ([g.text for g in one], "".join(text for text, _ in pieces)) == (["<1>"], "<1>")
    assert len(pieces) > 1
    assert ([g.text for g in two], whole) == (["<1>", "<1>'"], [("<1>", {"prompt": "a"})])


@pytest.mark.parametrize("streams", [False, True])
def test_no_tokens_with_log_probabilities_are_those_of_the_next_token(streams: bool) -> None:
    backend = FakeBackend()
    sampling = Sampling(max_tokens=0, min_tokens=0, return_logprob=True, n=2)

    generations, published = written(backend, sampling, streams=streams)

    assert backend.samplings == [Sampling(max_tokens=1, return_logprob=True, n=2)]
    assert generations == [Generation("", (), {"prompt": "a"})] * 2
    assert published == []


def test_no_tokens_without_log_probabilities_are_none() -> None:
    backend = FakeBackend()

    written(backend, Sampling(max_tokens=0), streams=False)

    assert backend.samplings == [Sampling(max_tokens=0)]


def test_a_stream_without_an_end_broke_off() -> None:
    class Broken(FakeBackend):
        async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece, None]:
            yield Piece("a")

    with pytest.raises(RequestFailed, match="broke off"):
        written(Broken(), Sampling(), streams=True)
