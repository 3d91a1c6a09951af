"""Tests of runtime.lang.local: what it asks of an engine; on a real one: tests/end_to_end."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from runtime.engine.engine import Engine
from runtime.errors import BadRequest, QueueFull
from runtime.lang.backend import Backend
from runtime.lang.local import Local
from runtime.lang.loop import LOOP
from runtime.lang.prompt import Prompt, Written
from runtime.lang.sampling import Sampling

WAIT_S = 60.0
PROMPT = Prompt(pieces=("a",))


def reply(text: str, ids: list[int]) -> dict[str, Any]:
    return {"text": text, "output_ids": ids, "meta_info": {"finish_reason": {"type": "length"}}}


class FakeEngine:
    """Answers what it is told, and remembers what it was asked.

    full     how often it refuses first
    left     streams that were closed before their end
    """

    def __init__(self, answer: Any, *, full: int = 0) -> None:
        self.answer = answer
        self.full = full
        self.asked: list[dict[str, Any]] = []
        self.left = 0

    def _take(self, fields: dict[str, Any]) -> Any:
        self.asked.append(fields)
        if self.full:
            self.full -= 1
            raise QueueFull("full", retry_after_s=0)
        return self.answer

    async def async_generate(self, **fields: Any) -> Any:
        """Answer, or return a stream of the answers."""
        return self._stream(fields) if fields.get("stream") else self._take(fields)

    async def _stream(self, fields: dict[str, Any]) -> AsyncGenerator[Any, None]:
        chunks = self._take(fields)
        try:
            for chunk in chunks:
                yield chunk
        except GeneratorExit:
            self.left += 1
            raise

    async def async_score(self, **fields: Any) -> Any:
        """Answer."""
        return self._take(fields)

    def flush_cache(self) -> bool:
        """Say that it is busy."""
        return False

    def server_info(self) -> dict[str, Any]:
        """Say what this is."""
        return {"version": "fake"}


def local(engine: FakeEngine) -> Backend:
    return Local(cast(Engine, engine))


def run(work: Any) -> Any:
    return LOOP.submit(work).result(WAIT_S)


async def pieces(backend: Backend, sampling: Sampling) -> list[Any]:
    return [piece async for piece in backend.stream(PROMPT, sampling)]


def test_a_generation_is_asked_as_the_engine_calls_it() -> None:
    engine = FakeEngine(reply("hi", [1, 2]))
    written = Prompt(pieces=("a", Written("b", (7,))))

    [said] = run(local(engine).generate(PROMPT, Sampling(max_tokens=3)))
    run(local(engine).generate(written, Sampling(return_logprob=True)))
    run(local(engine).cache_prefix(PROMPT))

    assert (said.text, said.token_ids) == ("hi", (1, 2))
    assert engine.asked == [
        {"prompt": "a", "sampling_params": {"max_new_tokens": 3}},
        {
            "prompt_parts": {"segments": ["a", (7,)]},
            "sampling_params": {},
            "return_logprob": True,
        },
        {"prompt": "a", "sampling_params": {"max_new_tokens": 0}},
    ]


def test_several_choices_come_in_one_reply() -> None:
    engine = FakeEngine([reply("a", [1]), reply("b", [2])])

    assert [g.text for g in run(local(engine).generate(PROMPT, Sampling(n=2)))] == ["a", "b"]


def test_a_stream_gives_what_is_new_and_at_last_the_whole() -> None:
    engine = FakeEngine([reply("h", [1]), reply("h", [1]), reply("hi", [1, 2])])

    read = run(pieces(local(engine), Sampling()))

    assert [piece.text for piece in read] == ["h", "", "i", ""]
    assert read[-1].last.token_ids == (1, 2)


def test_a_stream_that_is_left_is_left_on_the_engine() -> None:
    engine = FakeEngine([reply("h", [1]), reply("hi", [1, 2])])

    async def glance() -> None:
        stream = local(engine).stream(PROMPT, Sampling())
        await anext(stream)
        await stream.aclose()

    run(glance())

    assert engine.left == 1


def test_choices_are_scored_by_one_request() -> None:
    row = {"token_ids": [1], "token_texts": ["y"], "logprobs": [-1.0]}
    engine = FakeEngine({"choices": [row, row], "meta_info": {"id": "x"}})

    scores, meta = run(local(engine).score(PROMPT, ("y", "n"), unconditional=True))

    assert engine.asked == [{"prompt": "a", "choices": ("y", "n"), "unconditional": True}]
    assert ([score.text for score in scores], meta) == (["y", "n"], {"id": "x"})


def test_an_engine_that_is_full_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.lang.patience.FIRST_PAUSE_S", 0.0)
    engine = FakeEngine([reply("hi", [1])], full=2)

    assert run(pieces(local(engine), Sampling()))[-1].last.text == "hi"
    assert len(engine.asked) == 3


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.lang.patience.PATIENCE_S", -1.0)
    engine = FakeEngine(reply("hi", [1]), full=1)

    with pytest.raises(QueueFull):
        run(local(engine).generate(PROMPT, Sampling()))


def test_what_the_engine_refuses_is_raised_at_once() -> None:
    class Refusing(FakeEngine):
        def _take(self, fields: dict[str, Any]) -> Any:
            raise BadRequest("no")

    with pytest.raises(BadRequest, match="no"):
        run(local(Refusing(None)).generate(PROMPT, Sampling()))


def test_the_rest_is_handed_through() -> None:
    backend = local(FakeEngine(None))

    assert run(backend.aflush_cache()) is False
    assert run(backend.aserver_info()) == {"version": "fake"}
    asyncio.run(backend.aclose())
