"""Tests of runtime.server.openai_schema: what is taken, ignored and refused."""

from typing import Any

import pytest

from runtime.errors import BadRequest
from runtime.server.body import decode
from runtime.server.chat_schema import ChatBody
from runtime.server.openai_schema import CommonBody, CompletionBody
from tests.runtime.server.engine import Server, served

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
PICTURE = {"type": "image_url", "image_url": {"url": "http://x"}}

REFUSED_CHAT: dict[str, dict[str, Any]] = {
    "no messages": {"messages": []},
    "messages missing": {"messages": None},
    "unknown role": {"messages": [{"role": "wizard", "content": "x"}]},
    "tool message": {"messages": [*HI, {"role": "tool", "content": "x", "tool_call_id": "1"}]},
    "content missing": {"messages": [{"role": "user"}]},
    "image": {"messages": [{"role": "user", "content": [PICTURE]}]},
    "text part without text": {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    "tool calls": {"messages": [{"role": "assistant", "tool_calls": [TOOL]}]},
    "tools": {"tools": [TOOL]},
    "functions": {"functions": [TOOL["function"]]},
    "tool_choice": {"tool_choice": "required"},
    "response_format": {"response_format": {"type": "xml"}},
    "json schema": {"response_format": {"type": "json_schema", "json_schema": {}}},
    "modalities": {"modalities": ["text", "audio"]},
    "two grammars": {"regex": "a+", "response_format": {"type": "json_object"}},
    "grammar of another server": {"guided_json": {"type": "object"}},
    "own template": {"chat_template": "{{ 1 }}"},
    "unknown template argument": {"chat_template_kwargs": {"messages": "x"}},
    "template argument of an object": {"chat_template_kwargs": {"thinking": {}}},
    "template argument that does nothing": {"chat_template_kwargs": {"thinking": True}},
    "reasoning effort": {"reasoning_effort": "high"},
    "thinking": {"thinking": {"type": "enabled"}},
    "top_logprobs alone": {"top_logprobs": 2},
    "21 top_logprobs": {"logprobs": True, "top_logprobs": 21},
    "logprobs of a number": {"logprobs": 5},
    "n of 65": {"n": 65},
    "best_of": {"best_of": 2},
    "best_of beside n": {"n": 2, "best_of": 3},
}
REFUSED_COMPLETION: dict[str, dict[str, Any]] = {
    "suffix": {"suffix": "x"},
    "best_of": {"best_of": 2},
    "best_of of none": {"best_of": 0},
    "best_of beside n": {"n": 2, "best_of": 3},
    "21 logprobs": {"logprobs": 21},
    "negative logprobs": {"logprobs": -1},
    "guided": {"guided_regex": "a"},
    "response_format": {"response_format": {"type": "xml"}},
}
HARMLESS: dict[str, Any] = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "something_new": {"deep": [1, 2, {"x": None}]},
    "response_format": {"type": "text"},
}


@pytest.mark.parametrize("name", REFUSED_CHAT)
@served()
async def test_a_chat_that_cannot_be_served_is_refused(server: Server, name: str) -> None:
    reply = await server.post(CHAT, {"messages": HI, **REFUSED_CHAT[name]})

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["message"]
    assert not server.engine.requests


@pytest.mark.parametrize("name", REFUSED_COMPLETION)
@served()
async def test_a_completion_that_cannot_be_served_is_refused(server: Server, name: str) -> None:
    reply = await server.post(COMPLETIONS, {"prompt": "x", **REFUSED_COMPLETION[name]})

    assert reply.status_code == 400, reply.text
    assert not server.engine.requests


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"max_tokens": -1}, "max_tokens", "max_tokens must be between 0 and 2147483647, got -1"),
        ({"min_tokens": -1}, "min_tokens", "min_tokens must be between 0 and 2147483647, got -1"),
        (
            {"min_tokens": 3, "max_tokens": 2},
            "min_tokens",
            "min_tokens must be at most max_tokens (2), got 3",
        ),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@served()
async def test_a_refused_length_is_named_as_it_was_sent(
    server: Server, path: str, fields: dict[str, int], param: str, message: str
) -> None:
    error = (await server.post(path, {"messages": HI, "prompt": "x", **fields})).json()["error"]

    assert (error["param"], error["message"]) == (param, message)


@pytest.mark.parametrize(
    ("more", "param", "message"),
    [
        ({}, "max_completion_tokens", "max_completion_tokens must be between 0 and"),
        ({"max_tokens": 5}, "max_completion_tokens", "max_completion_tokens must be between 0 and"),
        (
            {"max_completion_tokens": 2, "min_tokens": 3},
            "min_tokens",
            "min_tokens must be at most max_completion_tokens (2), got 3",
        ),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@served()
async def test_the_newer_name_of_a_length_is_told_where_it_was_sent(
    server: Server, path: str, more: dict[str, int], param: str, message: str
) -> None:
    body = {"messages": HI, "prompt": "x", "max_completion_tokens": -1, **more}

    error = (await server.post(path, body)).json()["error"]

    assert error["param"] == param
    assert error["message"].startswith(message)


@pytest.mark.parametrize("shape", [ChatBody, CompletionBody])
@pytest.mark.parametrize("key", [-1, (1 << 61) - 1, 1 << 70])
def test_a_number_that_is_no_token_id_is_no_key(shape: type[CommonBody], key: int) -> None:
    with pytest.raises(BadRequest, match="logit_bias") as refused:
        decode(b'{"messages": [], "logit_bias": {"%d": 1}}' % key, shape)

    assert refused.value.param == "logit_bias"


@served()
async def test_harmless_and_null_fields_are_taken(server: Server) -> None:
    names = ("n", "stop", "temperature", "seed", "stream", "logit_bias", "tools", "stream_options")
    nulls: dict[str, Any] = dict.fromkeys(names)
    off: dict[str, Any] = {"tools": [], "tool_choice": "none", "modalities": ["text"], "suffix": ""}
    off |= {"reasoning_effort": "none", "best_of": 1}

    for more in (HARMLESS, nulls, off):
        for path in (CHAT, COMPLETIONS):
            reply = await server.post(path, {"messages": HI, "prompt": "x", **more})
            assert reply.status_code == 200, reply.text
    template = {"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": False}
    assert (await server.post(CHAT, {"messages": HI, **template})).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@served()
async def test_the_newer_name_of_a_length_counts(server: Server, path: str, stream: bool) -> None:
    for asked, tokens in (
        ({"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 7}, 3),
        ({"max_tokens": 7, "max_completion_tokens": None}, 7),
    ):
        body = {"messages": HI, "prompt": "x", "stream": stream, **asked}

        assert (await server.post(path, body)).status_code == 200
        assert server.engine.requests[-1].sampling.max_new_tokens == tokens


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@served()
async def test_best_of_as_many_as_are_returned_is_n(server: Server, path: str) -> None:
    reply = await server.post(path, {"messages": HI, "prompt": "x", "n": 2, "best_of": 2})

    assert reply.status_code == 200
    assert len(reply.json()["choices"]) == 2


@served()
async def test_the_extensions_reach_the_scheduler(server: Server) -> None:
    body = {
        "top_k": 4, "min_p": 0.1, "min_tokens": 2, "repetition_penalty": 1.2, "max_tokens": 9,
        "stop_token_ids": [7], "ignore_eos": True, "priority": 3, "logit_bias": {"5": -3},
        "seed": 11, "presence_penalty": 0.5, "frequency_penalty": -0.5, "top_p": 0.8,
    }  # fmt: skip
    for path in (CHAT, COMPLETIONS):
        await server.post(path, {"messages": HI, "prompt": "x", **body})

        request = server.engine.requests[-1]
        sampling = request.sampling
        assert (sampling.top_k, sampling.min_p, sampling.min_new_tokens) == (4, 0.1, 2)
        assert (sampling.repetition_penalty, sampling.max_new_tokens) == (1.2, 9)
        assert (sampling.stop_token_ids, sampling.ignore_eos, sampling.seed) == ((7,), True, 11)
        assert (sampling.logit_bias, sampling.top_p) == ({5: -3.0}, 0.8)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
        assert request.priority == 3
