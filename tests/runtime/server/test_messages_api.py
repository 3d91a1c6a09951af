"""Tests of runtime.server.messages_api: shapes, streams, counts and errors of `/v1/messages`."""

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from runtime.config import ServerConfig
from runtime.messages import unpack_ids
from runtime.server.replies import EventStream
from tests.runtime.server.engine import V4_CONTEXT_TOKENS, Server, served
from tests.runtime.server.test_replies import Connection

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
Json = dict[str, Any]

HI: Json = {
    "model": "default",
    "max_tokens": 2000,
    "messages": [{"role": "user", "content": "hi"}],
    "output_config": {"effort": "low"},
}
OFF: Json = {"thinking": {"type": "disabled"}}
TOOLS: Json = {
    "tools": [
        {"name": "f", "input_schema": {"type": "object", "properties": {"s": {"type": "string"}}}}
    ]
}
INVOKE = (
    '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">a</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
)
CALLS = f"why</think>so\n\n<｜DSML｜tool_calls>\n{INVOKE}{INVOKE}</｜DSML｜tool_calls>"


async def events(server: Server, body: Json) -> list[Json]:
    """Return the events of a stream; each is named by its type."""
    reply = await server.post(PATH, {**body, "stream": True})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    told: list[Json] = []
    for block in reply.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {told[-1]['type']}"
    return told


def tokens(server: Server, text: str) -> int:
    return len(server.engine.tokenizer.encode(text).ids)


@served(v4=True)
async def test_an_answer_is_a_message_of_blocks(server: Server) -> None:
    server.engine.reply = "why</think>hello"

    reply = (await server.post(PATH, HI)).json()

    name = reply.pop("id")
    assert name.startswith("msg_")
    prompt = len(unpack_ids(server.engine.requests[0].input_ids))
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [
            {"type": "thinking", "thinking": "why", "signature": name},
            {"type": "text", "text": "hello"},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt - 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": tokens(server, "why</think>hello") + 1,
            "output_tokens_details": {"thinking_tokens": tokens(server, "why")},
        },
    }


@served(v4=True)
async def test_calls_are_blocks_with_their_input(server: Server) -> None:
    server.engine.reply = CALLS

    reply = (await server.post(PATH, {**HI, **TOOLS})).json()

    assert reply["stop_reason"] == "tool_use"
    assert [block["type"] for block in reply["content"]] == [
        "thinking", "text", "tool_use", "tool_use",
    ]  # fmt: skip
    assert [b["input"] for b in reply["content"][2:]] == [{"s": "a"}] * 2
    ids = {b["id"] for b in reply["content"][2:]}
    assert len(ids) == 2
    assert all(name.startswith("toolu_") for name in ids)


@pytest.mark.parametrize("step", [1, 3, 1000])
@served(v4=True)
async def test_a_stream_tells_the_same_in_order(server: Server, step: int) -> None:
    server.engine.reply, server.engine.step = CALLS, step
    whole = (await server.post(PATH, {**HI, **TOOLS})).json()

    start, *blocks, end, stop = await events(server, {**HI, **TOOLS})

    assert start["type"] == "message_start"
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    told = ["".join(_texts(blocks, index)) for index in range(4)]
    assert told == ["why", "so", '{"s": "a"}', '{"s": "a"}']
    assert [b["content_block"]["type"] for b in blocks if "content_block" in b] == [
        block["type"] for block in whole["content"]
    ]
    assert end == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": whole["usage"],
    }
    assert stop == {"type": "message_stop"}


def _texts(blocks: list[Json], index: int) -> list[str]:
    """Return what the deltas of one block say, its signature left out."""
    deltas = [b["delta"] for b in blocks if b["index"] == index and "delta" in b]
    return [
        delta[name] for delta in deltas for name in ("text", "thinking", "partial_json")
        if name in delta
    ]  # fmt: skip


@served(v4=True)
async def test_a_call_that_was_cut_off_is_told_apart(server: Server) -> None:
    server.engine.reply = CALLS
    most = tokens(server, CALLS.rpartition("a</")[0])
    body = {**HI, **TOOLS, "max_tokens": most}

    reply = (await server.post(PATH, body)).json()
    end = (await events(server, body))[-2]

    assert reply["stop_reason"] == end["delta"]["stop_reason"] == "max_tokens"
    assert [b["type"] for b in reply["content"]].count("tool_use") == 1
    invalid = reply["invalid_tool_calls"]
    assert [call["name"] for call in invalid] == ["f"]
    [told] = end["delta"]["invalid_tool_calls"]
    assert told.pop("id").startswith("toolu_")
    assert [told] == invalid


@served(v4=True)
async def test_an_input_comes_while_it_is_written(server: Server) -> None:
    server.engine.reply = CALLS.replace(">a</", f">{'a word ' * 20}</")

    told = await events(server, {**HI, **TOOLS})

    starts = [k for k, e in enumerate(told) if e.get("content_block", {}).get("type") == "tool_use"]
    ends = [k for k, e in enumerate(told) if e["type"] == "content_block_stop"]
    for start, end in zip(starts, ends[-2:], strict=True):
        assert told[start]["content_block"]["id"].startswith("toolu_")
        assert {e["delta"]["type"] for e in told[start + 1 : end]} == {"input_json_delta"}
        assert end - start > 20


@pytest.mark.parametrize("fields", [{}, {**TOOLS, "tool_choice": {"type": "none"}}])
@served(v4=True)
async def test_a_call_that_no_tool_is_offered_for_is_invalid_and_no_text(
    server: Server, fields: Json
) -> None:
    server.engine.reply = CALLS
    use = {"type": "tool_use", "id": "any_id", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "any_id", "content": "r"}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body = {**HI, **fields, "messages": HI["messages"] + turns}

    reply = (await server.post(PATH, body)).json()
    told = await events(server, body)

    assert [b.get("text") for b in reply["content"]] == [None, "so"]
    assert reply["stop_reason"] == "end_turn"
    assert [call["name"] for call in reply["invalid_tool_calls"]] == ["f", "f"]
    blocks = [e["content_block"]["type"] for e in told if "content_block" in e]
    assert blocks == ["thinking", "text"]
    assert "".join(_texts([e for e in told if "index" in e], 1)) == "so"
    assert told[-2]["delta"]["invalid_tool_calls"] == reply["invalid_tool_calls"]


@served(v4=True)
async def test_an_answer_cut_before_a_call_has_a_name_says_so(server: Server) -> None:
    server.engine.reply = CALLS
    body = {**HI, **TOOLS, "max_tokens": tokens(server, CALLS.partition("voke")[0])}

    reply = (await server.post(PATH, body)).json()
    end = (await events(server, body))[-2]

    [invalid] = reply["invalid_tool_calls"]
    assert (invalid["name"], reply["stop_reason"]) == (None, "max_tokens")
    assert end["delta"]["invalid_tool_calls"] == [invalid]


@served(v4=True)
async def test_thinking_that_is_left_out_comes_back_into_the_next_prompt(server: Server) -> None:
    server.engine.reply = CALLS
    body = {**HI, **TOOLS, "thinking": {"type": "adaptive", "display": "omitted"}}
    told = (await server.post(PATH, body)).json()["content"]
    assert told[0]["thinking"] == ""

    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "r"} for block in told[2:]
    ]
    turns = [{"role": "assistant", "content": told}, {"role": "user", "content": results}]
    await server.post(PATH, {**body, "messages": HI["messages"] + turns})

    first, then = (request.input_ids for request in server.engine.requests)
    assert then.startswith(first)
    rest = [int(i) for i in unpack_ids(then[len(first) :])]
    assert server.engine.tokenizer.decode(rest).startswith("whyso")


@served(v4=True)
async def test_a_stop_sequence_is_told_and_cut_off(server: Server) -> None:
    server.engine.reply = "hello there"

    reply = (await server.post(PATH, {**HI, **OFF, "stop_sequences": ["xx", "lo t"]})).json()

    assert reply["content"] == [{"type": "text", "text": "hel"}]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "lo t")


@served(v4=True)
async def test_stop_sequences_that_are_refused_are_called_so(server: Server) -> None:
    reply = await server.post(PATH, {**HI, "stop_sequences": [""]})

    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("stop_sequences must be strings of")


@served(v4=True)
async def test_more_than_the_context_leaves_may_be_asked_for(server: Server) -> None:
    server.engine.reply = "word " * V4_CONTEXT_TOKENS

    full = (await server.post(PATH, {**HI, **OFF, "max_tokens": 10**6})).json()
    short = (await server.post(PATH, {**HI, **OFF, "max_tokens": 5})).json()

    assert full["stop_reason"] == "model_context_window_exceeded"
    used = sum(full["usage"][name] for name in ("input_tokens", "cache_read_input_tokens"))
    assert used + full["usage"]["output_tokens"] == V4_CONTEXT_TOKENS
    assert (short["stop_reason"], short["usage"]["output_tokens"]) == ("max_tokens", 5)


@served(v4=True)
async def test_a_prompt_can_be_cached_without_an_answer(server: Server) -> None:
    reply = (await server.post(PATH, {**HI, "max_tokens": 0})).json()

    assert server.engine.requests[0].sampling.max_new_tokens == 0
    assert (reply["content"], reply["stop_reason"]) == ([], "max_tokens")


@served(v4=True)
async def test_the_count_is_that_of_the_prompt(server: Server) -> None:
    body = {**HI, **TOOLS, "system": "Be brief."}
    await server.post(PATH, body)

    counted = await server.post(f"{COUNT}?beta=true", body)

    assert counted.json() == {"input_tokens": len(unpack_ids(server.engine.requests[0].input_ids))}
    assert len(server.engine.requests) == 1


@served()
async def test_a_template_answers_too(server: Server) -> None:
    body = {name: HI[name] for name in ("model", "messages")}

    reply = (await server.post(PATH, {**body, "max_tokens": 50, "system": "s"})).json()
    refused = await server.post(PATH, {**body, **TOOLS, "max_tokens": 50})

    assert reply["content"] == [{"type": "text", "text": "hello"}]
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens must be"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            r"messages[0].content[0]: the type 'image' is not supported",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"thinking": {"type": "between_tools"}}, "thinking: the type 'between_tools'"),
        ({"container": "c"}, "container"),
        ({"output_format": {"type": "json_object"}}, "output_format: the type 'json_object'"),
        ({"output_format": {"type": "json_schema"}}, "output_format: Object missing required"),
        ({"output_format": {"type": "json_schema", "schema": []}}, "output_format.schema"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "redacted_thinking", "data": "x"}]}
                ]
            },
            "messages[0].content[0]: a message of role user has no such block",
        ),
    ],
)
@served(v4=True)
async def test_a_refusal_names_its_field(server: Server, fields: Json, named: str) -> None:
    reply = await server.post(PATH, {**HI, **fields})

    assert reply.status_code == 400
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert named in reply.json()["error"]["message"]
    assert not server.engine.requests


@served(v4=True)
async def test_another_model_is_not_found_and_a_full_queue_says_when_to_come_back(
    server: Server,
) -> None:
    for path in (PATH, COUNT):
        other = await server.post(path, {**HI, "model": "other"})
        assert (other.status_code, other.json()["error"]["type"]) == (404, "not_found_error")
    server.engine.refuse = "queue_full"

    full = await server.post(PATH, {**HI, "stream": True})

    assert (full.status_code, full.json()["error"]["type"]) == (429, "rate_limit_error")
    assert int(full.headers["retry-after"]) >= 1


@served(v4=True)
async def test_a_stream_that_breaks_ends_with_an_error_event(server: Server) -> None:
    server.engine.fail = "bad logits"

    *said, error = await events(server, HI)

    assert said[0]["type"] == "message_start"
    assert error == {"type": "error", "error": {"type": "api_error", "message": "bad logits"}}


@served(v4=True)
async def test_a_silent_stream_pings(server: Server) -> None:
    server.engine.hold.clear()
    connection = Connection(PATH, {**HI, "stream": True})
    with pytest.MonkeyPatch.context() as patch:
        quick = partial(EventStream, keep_alive_s=0.01)
        patch.setattr("runtime.server.messages_api.EventStream", quick)
        exchange = asyncio.ensure_future(
            server.app(connection.scope, connection.receive, connection.send)
        )
        while 'event: ping\ndata: {"type":"ping"}\n\n' * 2 not in connection.text:
            await asyncio.sleep(0.001)
    connection.leave.set()
    await exchange

    assert connection.text.startswith("event: message_start\n")
    assert server.engine.aborted == [server.engine.requests[0].request_id]


@served(ServerConfig(api_key="secret"), v4=True)
async def test_a_key_is_wanted(server: Server) -> None:
    refused = await server.post(PATH, HI)
    taken = await server.post(PATH, HI, **{"x-api-key": "secret"})

    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
    assert taken.status_code == 200


@served(v4=True)
async def test_the_document_tells_the_types_of_blocks(server: Server) -> None:
    document = (await server.client.get("/openapi.json")).json()

    body = document["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]
    content = body["properties"]["messages"]["items"]["properties"]["content"]["anyOf"]
    kinds = [block["properties"]["type"]["enum"] for block in content[1]["items"]["anyOf"]]
    assert kinds == [
        ["text"], ["thinking"], ["redacted_thinking"], ["tool_use"], ["tool_result"]
    ]  # fmt: skip
    assert {"model", "messages", "max_tokens"} == set(body["required"])
    assert "discriminator" not in json.dumps(body)
