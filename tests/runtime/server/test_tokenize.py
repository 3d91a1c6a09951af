"""Tests of runtime.server.tokenize."""

from typing import Any

import pytest

from runtime.messages import unpack_ids
from runtime.server.tokenize import MAX_CHARS, MAX_TOKENS
from tests.runtime.server.engine import (
    ASSISTANT,
    BOS,
    CONTEXT_TOKENS,
    USER,
    Server,
    served,
    text_ids,
)

TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
SCHEMA = {"name": "s", "schema": {"type": "object"}}
CHATS: dict[str, dict[str, Any]] = {
    "nothing said": {},
    "no thinking": {"thinking": {"type": "disabled"}},
    "no effort": {"reasoning_effort": "none"},
    "a template argument": {"chat_template_kwargs": {"thinking": False}},
    "tools": TOOLS,
    "tools that are not to be called": {**TOOLS, "tool_choice": "none"},
    "a tool that has to be called": {**TOOLS, "tool_choice": "required"},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
}


@pytest.mark.parametrize("prefix", ["", "/v1"])
@served()
async def test_a_text_becomes_ids_and_comes_back(server: Server, prefix: str) -> None:
    there = (await server.post(f"{prefix}/tokenize", {"prompt": "hé"})).json()
    back = (await server.post(f"{prefix}/detokenize", {"tokens": there["tokens"]})).json()

    assert there == {"tokens": text_ids("hé"), "count": 3, "max_model_len": CONTEXT_TOKENS}
    assert back == {"text": "hé", "prompt": "hé"}


@served()
async def test_several_texts_give_several_lists(server: Server) -> None:
    reply = (await server.post("/tokenize", {"text": ["a", "bc"]})).json()

    assert reply["tokens"] == [text_ids("a"), text_ids("bc")]
    assert reply["count"] == [1, 2]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "a" * (MAX_CHARS + 1)}),
        ("/tokenize", {"prompt": ["a" * (MAX_CHARS // 2)] * 3}),
        ("/detokenize", {"tokens": [1] * (MAX_TOKENS + 1)}),
    ],
)
@served()
async def test_what_would_take_memory_without_end_is_refused(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    reply = await server.post(path, body)

    assert reply.status_code == 400
    assert "send parts" in reply.json()["error"]["message"]


@served()
async def test_a_chat_gives_its_prompt(server: Server) -> None:
    messages = [{"role": "user", "content": "hi"}]

    opened = (await server.post("/tokenize", {"messages": messages})).json()
    closed = (
        await server.post("/tokenize", {"messages": messages, "add_generation_prompt": False})
    ).json()

    assert opened["tokens"] == [BOS, USER, *text_ids("hi"), ASSISTANT]
    assert closed["tokens"] == [BOS, USER, *text_ids("hi")]


@pytest.mark.parametrize("name", CHATS)
@served(v4=True)
async def test_a_chat_gives_the_prompt_that_its_answer_has(server: Server, name: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **CHATS[name]}
    await server.post("/v1/chat/completions", {**body, "max_tokens": 1})

    told = (await server.post("/tokenize", body)).json()["tokens"]

    asked = server.engine.requests[0]
    assert told == [int(token) for token in unpack_ids(asked.input_ids)]


@served()
async def test_control_tokens_are_shown_when_asked(server: Server) -> None:
    body = {"tokens": [BOS, *text_ids("a")]}

    hidden = (await server.post("/detokenize", body)).json()
    shown = (await server.post("/detokenize", {**body, "skip_special_tokens": False})).json()

    assert (hidden["text"], shown["text"]) == ("a", "<|bos|>a")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "x", "messages": []}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "thinking": 5}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": ["x"] * 257}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [10**30]}),
    ],
)
@served()
async def test_what_cannot_be_tokenised_is_refused(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    assert (await server.post(path, body)).status_code == 400
