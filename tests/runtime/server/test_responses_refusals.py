"""`/v1/responses`: refusals, and bodies that were made to break the server."""

import json

import pytest

from tests.runtime.server.engine import V4_CONTEXT_TOKENS, Server, served
from tests.runtime.server.test_responses_api import HI, PATH, Json


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"background": True}, "background"),
        ({"cache_salt": "no blanks"}, "cache_salt"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "string"}}]}, "tools"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}, "input"),
    ],
)
@served(v4=True)
async def test_a_refusal_names_its_field(server: Server, fields: Json, param: str) -> None:
    reply = await server.post(PATH, {**HI, **fields})

    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"]
    assert not server.engine.requests


@pytest.mark.parametrize("depth", [50, *range(100, 520, 30), 5000])
@served(v4=True)
async def test_a_body_of_any_depth_is_answered_or_refused(server: Server, depth: int) -> None:
    deep = json.dumps({"x": 1}).replace("1", '{"y":' * depth + "1" + "}" * depth)
    tool = json.dumps({"type": "function", "name": "f", "parameters": {"type": "object"}})
    tools = f'{{"input": "x", "tools": [{tool[:-2]}, "properties": {deep}}}}}]}}'
    form = f'{{"format": {{"type": "json_schema", "name": "x", "schema": {deep}}}}}'
    choice = f'{{"type": "function", "name": "f", "z": {deep}}}'
    bodies = [
        tools,
        f'{{"input": "x", "text": {form}}}',
        f'{{"input": "x", "tools": [{tool}], "tool_choice": {choice}}}',
        f'{{"input": [{{"role": "user", "content": {deep}}}]}}',
        f'{{"input": "x", "unknown": {deep}}}',
    ]
    for body in bodies:
        reply = await server.client.post(PATH, content=body)
        assert reply.status_code in (200, 400), reply.text
        assert reply.json()


@served(v4=True)
async def test_hostile_bodies_are_refused(server: Server) -> None:
    long = [{"role": "user", "content": ""}] * 10_001
    for body in ("[]", "5", "", "\ud800x".encode("utf-8", "surrogatepass"), '{"input": "\\ud800"}'):
        assert (await server.client.post(PATH, content=body)).status_code == 400
    too_many = await server.post(PATH, {"input": long})
    too_long = await server.post(PATH, {"input": "word " * V4_CONTEXT_TOKENS * 20})

    assert too_many.json()["error"]["param"] == "input"
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    assert not server.engine.requests


@pytest.mark.parametrize("stream", [False, True])
@served(v4=True)
async def test_a_refusal_before_the_first_event_is_a_status(server: Server, stream: bool) -> None:
    body = {**HI, "stream": stream}
    other = await server.post(PATH, {**body, "model": "other"})
    server.engine.refuse = "queue_full"
    full = await server.post(PATH, body)

    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
    assert (full.status_code, full.json()["error"]["type"]) == (429, "rate_limit_error")
