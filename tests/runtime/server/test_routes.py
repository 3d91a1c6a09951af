"""Tests of runtime.server.routes: a body in, a reply or a stream out."""

from typing import Any

import pytest

from tests.runtime.server.engine import Server, served

PROMPT = {"text": "x", "sampling_params": {"max_new_tokens": 3}}
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}


@pytest.mark.parametrize(("path", "body"), [("/generate", PROMPT), ("/v1/chat/completions", CHAT)])
@served()
async def test_what_generates_replies_whole_or_as_events(
    server: Server, path: str, body: Any
) -> None:
    whole = (await server.post(path, body)).json()
    events = await server.events(path, body)

    assert events[-1] == "[DONE]"
    if path == "/generate":
        assert events[-2]["text"] == whole["text"]
    else:
        said = [c["delta"].get("content", "") for e in events[:-1] for c in e["choices"]]
        assert "".join(said) == whole["choices"][0]["message"]["content"]


@served()
async def test_a_choice_is_scored(server: Server) -> None:
    reply = await server.post("/score", {"text": "x", "choices": ["a", "b"]})

    assert [len(row["logprobs"]) for row in reply.json()["choices"]] == [1, 1]


@served()
async def test_tokens_are_counted_each_text_by_itself(server: Server) -> None:
    one = (await server.post("/tokenize", {"prompt": "ab"})).json()
    two = (await server.post("/tokenize", {"prompt": ["a", "abc"]})).json()
    text = (await server.post("/detokenize", {"tokens": one["tokens"]})).json()

    assert (one["count"], two["count"]) == (2, [1, 3])
    assert text == {"text": "ab", "prompt": "ab"}
