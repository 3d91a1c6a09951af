"""Tests of runtime.server.responses_api: shapes, streams, what is kept, and errors."""

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from runtime.messages import unpack_ids
from runtime.server.replies import EventStream
from tests.runtime.server.engine import V4_CONTEXT_TOKENS, Server, served
from tests.runtime.server.test_replies import Connection
from tests.runtime.server.test_responses_reply import CALLS, kinds

PATH = "/v1/responses"
Json = dict[str, Any]

HI: Json = {"model": "default", "input": "hi"}
OFF: Json = {"reasoning": {"effort": "none"}}
PARAMETERS: Json = {"type": "object", "properties": {"s": {"type": "string"}}}
TOOLS: Json = {"tools": [{"type": "function", "name": "f", "parameters": PARAMETERS}]}


async def create(server: Server, body: Json) -> Json:
    reply = await server.post(PATH, body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def events(server: Server, body: Json) -> list[Json]:
    """Return the events of a stream; each is named by its type, and they are counted."""
    reply = await server.post(PATH, {**body, "stream": True})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    told: list[Json] = []
    for block in reply.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {told[-1]['type']}"
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    return told


def tokens(server: Server, text: str) -> int:
    return len(server.engine.tokenizer.encode(text).ids)


def plain(response: Json) -> Json:
    """Return what two responses of the same answer have in common."""
    items = [{k: v for k, v in item.items() if "id" not in k} for item in response["output"]]
    return {"status": response["status"], "usage": response["usage"], "output": items}


@served(v4=True)
async def test_an_answer_is_reasoning_and_a_message(server: Server) -> None:
    server.engine.reply = "why</think>hello"

    reply = await create(server, {**HI, "metadata": {"a": "b"}})

    assert reply["id"].startswith("resp_")
    assert (reply["object"], reply["status"], reply["model"]) == ("response", "completed", "tiny")
    why, hello = reply["output"]
    assert why["content"] == [{"type": "reasoning_text", "text": "why"}]
    assert hello["content"][0]["text"] == "hello"
    prompt = len(unpack_ids(server.engine.requests[0].input_ids))
    said = tokens(server, "why</think>hello") + 1
    assert reply["usage"] == {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": tokens(server, "why")},
        "total_tokens": prompt + said,
    }
    assert (reply["metadata"], reply["error"]) == ({"a": "b"}, None)


@served(v4=True)
async def test_a_stream_tells_what_a_whole_reply_has(server: Server) -> None:
    server.engine.reply = CALLS
    whole = await create(server, {**HI, **TOOLS})

    told = await events(server, {**HI, **TOOLS})

    assert kinds(told)[:3] == ["created", "in_progress", "output_item.added"]
    assert told[0]["response"]["status"] == told[1]["response"]["status"] == "in_progress"
    assert told[-1]["type"] == "response.completed"
    assert plain(told[-1]["response"]) == plain(whole)
    assert len({event["response"]["id"] for event in told if "response" in event}) == 1
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert done == told[-1]["response"]["output"]


@served(v4=True)
async def test_an_answer_that_was_cut_off_says_so(server: Server) -> None:
    server.engine.reply = CALLS
    cut = CALLS[: CALLS.index(" b")]
    body: Json = {**HI, **TOOLS, "max_output_tokens": tokens(server, cut)}

    reply = await create(server, body)
    told = await events(server, body)

    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message"]
    assert [call["name"] for call in reply["invalid_tool_calls"]] == ["f"]
    assert told[-1]["type"] == "response.incomplete"
    item = told[-1]["response"]["output"][-1]
    assert (item["type"], item["status"]) == ("function_call", "incomplete")
    assert told[-1]["response"]["invalid_tool_calls"][0]["id"] == item["call_id"]
    # It can be continued: what was never called needs no output.
    after = {"previous_response_id": told[-1]["response"]["id"], "input": "go on"}
    await create(server, {**TOOLS, **after})


@served(v4=True)
async def test_more_than_the_context_leaves_may_be_asked_for(server: Server) -> None:
    server.engine.reply = "word " * V4_CONTEXT_TOKENS

    full = await create(server, {**HI, **OFF, "max_output_tokens": 10**6})
    short = await create(server, {**HI, **OFF, "max_output_tokens": 5})

    assert full["usage"]["total_tokens"] == V4_CONTEXT_TOKENS
    assert (short["status"], short["usage"]["output_tokens"]) == ("incomplete", 5)
    assert short["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("stream", [False, True])
@served(v4=True)
async def test_a_format_is_followed_and_a_refusal_of_it_names_it(
    server: Server, stream: bool
) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    body = {**HI, "text": {"format": form}, "stream": stream, "max_output_tokens": 9}

    assert (await server.post(PATH, body)).status_code == 200

    grammar = server.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", form["schema"])
    server.engine.refuse = "grammar"
    refused = await server.post(PATH, body)
    assert refused.status_code == 400
    assert '"param":"text.format"' in refused.text


@served(v4=True)
async def test_a_forced_call_has_a_grammar(server: Server) -> None:
    for choice in ("required", {"type": "function", "name": "f"}):
        made = await create(server, {**HI, **TOOLS, "tool_choice": choice})
        assert made["tool_choice"] == choice
        grammar = server.engine.requests[-1].sampling.grammar
        assert grammar is not None
        assert grammar.field == "tools"
    refused = await server.post(
        PATH, {**HI, **TOOLS, "tool_choice": {"type": "function", "name": "g"}}
    )
    assert refused.json()["error"]["param"] == "tool_choice"


@served(v4=True)
async def test_logprobs_are_those_of_the_text(server: Server) -> None:
    server.engine.reply = "why</think>hello"
    body: Json = {**HI, "include": ["message.output_text.logprobs"], "top_logprobs": 1}

    whole = (await create(server, body))["output"][-1]["content"][0]
    told = await events(server, body)

    assert "".join(entry["token"] for entry in whole["logprobs"]) == "hello"
    assert all(len(entry["top_logprobs"]) == 1 for entry in whole["logprobs"])
    deltas = [e["logprobs"] for e in told if e["type"] == "response.output_text.delta"]
    assert [entry for entries in deltas for entry in entries] == whole["logprobs"]


@served()
async def test_a_template_answers_too(server: Server) -> None:
    reply = await create(server, {**HI, "max_output_tokens": 50, "instructions": "s"})
    refused = await server.post(PATH, {**HI, **TOOLS, "max_output_tokens": 50})

    assert reply["output"][0]["content"][0]["text"] == "hello"
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools"


@served(v4=True)
async def test_a_stream_that_breaks_ends_with_a_failed_response(server: Server) -> None:
    server.engine.fail = "bad logits"

    told = await events(server, HI)

    assert told[0]["type"] == "response.created"
    assert told[-1]["type"] == "response.failed"
    assert told[-1]["response"]["status"] == "failed"
    assert told[-1]["response"]["error"] == {"code": "server_error", "message": "bad logits"}
    assert (await server.client.get(f"{PATH}/{told[0]['response']['id']}")).status_code == 404


@served(v4=True)
async def test_a_silent_stream_is_kept_alive_and_ends_with_its_client(server: Server) -> None:
    server.engine.hold.clear()
    connection = Connection(PATH, {**HI, "stream": True})
    with pytest.MonkeyPatch.context() as patch:
        quick = partial(EventStream, keep_alive_s=0.01)
        patch.setattr("runtime.server.responses_api.EventStream", quick)
        exchange = asyncio.ensure_future(
            server.app(connection.scope, connection.receive, connection.send)
        )
        while ": keep-alive\n\n" * 2 not in connection.text:
            await asyncio.sleep(0.001)
    connection.leave.set()
    await exchange

    assert connection.text.startswith("event: response.created\n")
    assert server.engine.aborted == [server.engine.requests[0].request_id]
