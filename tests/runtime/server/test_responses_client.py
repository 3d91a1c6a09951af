"""`/v1/responses` with OpenAI's own clients against a real socket: what they parse and stream."""

import asyncio
import typing
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseInputItemParam, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from runtime.config import ServerConfig
from tests.runtime.server.engine import Server, served
from tests.runtime.server.test_app import client_of
from tests.runtime.server.test_custom_tools import CALL, INPUT
from tests.runtime.server.test_responses_reply import CALLS

CONFIG = ServerConfig(model_path="/m", served_model_name="tiny", api_key="sk-1")
TOOL: Any = {
    "type": "function",
    "name": "f",
    "description": "does f",
    "parameters": {"type": "object", "properties": {"s": {"type": "string"}}},
    "strict": False,
}
CUSTOM: Any = {"type": "custom", "name": "code", "description": "Runs code."}


class City(BaseModel):
    """A place, as structured output."""

    name: str
    people: int


def strictly(response: Response) -> Response:
    """Return a response after all of it was validated, which the client itself leaves out."""
    return Response.model_validate(response.model_dump(by_alias=True), strict=False)


@served(CONFIG, v4=True)
async def test_a_text_is_parsed_and_kept(server: Server) -> None:
    server.engine.reply = "why</think>hello"
    async with client_of(server) as client:
        made = await client.responses.create(model="tiny", input="hi", instructions="Be brief.")
        assert made.output_text == "hello"
        assert [item.type for item in strictly(made).output] == ["reasoning", "message"]
        assert made.usage is not None
        assert made.usage.input_tokens_details.cached_tokens == 3
        assert made.usage.output_tokens_details.reasoning_tokens > 0

        then = await client.responses.create(
            model="tiny", input="and?", previous_response_id=made.id, reasoning={"effort": "none"}
        )
        assert then.previous_response_id == made.id
        assert (await client.responses.retrieve(made.id)) == made
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError, match="do not survive a restart") as missing:
            await client.responses.create(model="tiny", input="x", previous_response_id=made.id)
        assert missing.value.code == "previous_response_not_found"


@served(CONFIG, v4=True)
async def test_tools_are_called_over_two_turns(server: Server) -> None:
    server.engine.reply = CALLS
    conversation: list[Any] = [{"role": "user", "content": "hi"}]
    async with client_of(server) as client:
        made = await client.responses.create(model="tiny", input=conversation, tools=[TOOL])
        conversation += made.output
        for item in made.output:
            if item.type == "function_call":
                assert (item.name, item.arguments) == ("f", '{"s": "a b"}')
                told = {"type": "function_call_output", "call_id": item.call_id, "output": "r"}
                conversation.append(told)
        server.engine.reply = "so</think>done"
        then = await client.responses.create(model="tiny", input=conversation, tools=[TOOL])

    assert then.output_text == "done"
    assert len(conversation) == 7
    first, second = (request.input_ids for request in server.engine.requests)
    assert second.startswith(first)


@served(CONFIG, v4=True)
async def test_structured_output_is_parsed(server: Server) -> None:
    server.engine.reply = 'x</think>{"name": "Rome", "people": 3}'
    async with client_of(server) as client:
        made = await client.responses.parse(model="tiny", input="hi", text_format=City)

    assert made.output_parsed == City(name="Rome", people=3)
    grammar = server.engine.requests[0].sampling.grammar
    assert grammar is not None
    assert grammar.kind == "json_schema"


@served(CONFIG, v4=True)
async def test_the_stream_of_the_client_accepts_every_event(server: Server) -> None:
    server.engine.reply = CALLS
    async with (
        client_of(server) as client,
        client.responses.stream(model="tiny", input="hi", tools=[TOOL]) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()

    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert {"response.reasoning_text.delta", "response.output_text.delta"} <= set(kinds)
    assert "response.function_call_arguments.delta" in kinds
    assert final.output_text == "so"
    types = [item.type for item in final.output]
    assert types == ["reasoning", "message", "function_call", "function_call"]


@served(CONFIG, v4=True)
async def test_custom_tools_are_called_over_two_turns(server: Server) -> None:
    server.engine.reply = CALL
    effort: Any = {"effort": "none"}
    async with client_of(server) as client:
        asked: Any = {"model": "tiny", "tools": [CUSTOM], "reasoning": effort}
        async with client.responses.stream(input="hi", **asked) as stream:
            told = [event async for event in stream]
            made = await stream.get_final_response()
        [call] = strictly(made).output
        assert call.type == "custom_tool_call"
        output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "r"}
        server.engine.reply = "done"
        sent: Any = [{"role": "user", "content": "hi"}, *made.output, output]
        then = await client.responses.create(input=sent, **asked)

    assert (call.name, call.input) == ("code", INPUT)
    deltas = [e.delta for e in told if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == INPUT
    assert then.output_text == "done"
    first, second = (request.input_ids for request in server.engine.requests)
    assert second.startswith(first)


def literals(kind: Any) -> tuple[Any, ...]:
    """Return the values that a type of the client may have."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return parts
    return tuple(value for part in parts for value in literals(part))


@served(CONFIG, v4=True)
async def test_an_item_of_any_type_is_read_or_refused_by_its_name(server: Server) -> None:
    members = typing.get_args(ResponseInputItemParam)
    kinds = {name for item in members for name in literals(typing.get_type_hints(item).get("type"))}
    read = {
        *("message", "reasoning", "function_call", "function_call_output", "item_reference"),
        *("custom_tool_call", "custom_tool_call_output"),
    }
    assert read < kinds
    for kind in kinds - read:
        items = [{"role": "user", "content": "hi"}, {"type": kind, "id": "1", "call_id": "1"}]
        reply = await server.post("/v1/responses", {"input": items}, authorization="Bearer sk-1")
        error = reply.json()["error"]
        assert (error["param"], error["code"]) == ("input", "not_supported")
        assert error["message"] == f"input[1]: the type {kind!r} is not supported"


@pytest.mark.parametrize("limit", [None, 20, 90])
@served(CONFIG, v4=True)
async def test_every_event_has_the_fields_of_its_type(server: Server, limit: int | None) -> None:
    server.engine.reply = CALLS
    fields = {"max_output_tokens": limit, "tools": [TOOL], "input": "hi", "stream": True}
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    adapter = TypeAdapter[ResponseStreamEvent](ResponseStreamEvent)

    reply = await server.post("/v1/responses", {**fields, **include}, authorization="Bearer sk-1")

    lines = [line for line in reply.text.splitlines() if line.startswith("data: ")]
    told = [adapter.validate_json(line.removeprefix("data: ")) for line in lines]
    ending = "response.completed" if limit is None else "response.incomplete"
    assert told[-1].type == ending
    assert [event.sequence_number for event in told] == list(range(len(told)))


@served(CONFIG, v4=True)
async def test_errors_are_the_clients_own(server: Server) -> None:
    async with client_of(server) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.responses.create(model="tiny", input="x", tools=[{"type": "web_search"}])
        assert (bad.value.param, bad.value.code) == ("tools", "not_supported")
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_1")
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="sk-2").responses.retrieve("resp_1")
        server.engine.fail = "broke"
        stream = await client.responses.create(model="tiny", input="x", stream=True)
        last = [event async for event in stream][-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert last.response.error.message == "broke"


@served(CONFIG, v4=True)
async def test_the_client_without_an_event_loop_streams_too(server: Server) -> None:
    def read(url: str) -> tuple[str, Response]:
        with openai.OpenAI(base_url=url, api_key="sk-1", max_retries=0, timeout=60) as client:
            text, last = "", None
            stream = client.responses.create(model="tiny", input="hi", stream=True, **effort)
            for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
                last = event
            assert last is not None
            assert last.type == "response.completed"
            return text, last.response

    effort: Any = {"reasoning": {"effort": "none"}}
    async with client_of(server) as client:
        text, response = await asyncio.to_thread(read, str(client.base_url))

    assert text == strictly(response).output_text == "hello"
