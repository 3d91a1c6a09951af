"""The OpenAPI document is true: real requests and replies of every route are as it says."""

import json
from typing import Any

import jsonschema
import pytest

from runtime.server.chat_schema import ChatBody
from runtime.server.documentation import reply_documentation, request_schema
from tests.runtime.server.engine import Server, served

Json = dict[str, Any]

HI: Json = {"messages": [{"role": "user", "content": "hi"}]}
PARAMETERS: Json = {"type": "object", "properties": {"s": {"type": "string"}}}
TOOLS: Json = {"tools": [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]}
_CALL = (
    '<｜DSML｜invoke name="{}">\n<｜DSML｜parameter name="s" string="true">a</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
)
ANSWER = (
    "why</think>so\n\n<｜DSML｜tool_calls>\n"
    + _CALL.format("f")
    + _CALL.format("unknown")
    + "</｜DSML｜tool_calls>"
)
LOGPROBS: Json = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
SAID: list[Json] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]},
]
MESSAGES: Json = {
    "model": "default",
    "max_tokens": 300,
    "messages": SAID,
    "tools": [{"name": "f", "input_schema": PARAMETERS}],
    "thinking": {"type": "adaptive"},
}
RESPONSES: Json = {
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    "tools": [{"type": "function", "name": "f", "parameters": PARAMETERS}],
    "max_output_tokens": 300,
}
POSTED: dict[str, list[Json]] = {
    "/generate": [
        {"text": "hi"},
        {"text": ["a", "b"], "sampling_params": {"n": 2, "temperature": 0.5}},
        {"input_ids": [65, 66], **LOGPROBS, "token_ids_logprob": [67], "cache_salt": "x"},
        {"text": "hi", **LOGPROBS, "return_text_in_logprobs": True, "rid": "r"},
    ],
    "/score": [{"text": "hi", "choices": ["a", "bc", [70, 71]], "unconditional": True}],
    "/v1/completions": [
        {"prompt": "hi"},
        {"prompt": ["a", "b"], "n": 2, "echo": True, "logprobs": 2, "return_token_ids": True},
        {"prompt": [[65], [66, 67]], "logprobs": 0, "stop": "l", "logit_bias": {"65": 1}},
    ],
    "/v1/chat/completions": [
        {**HI, "reasoning_effort": "none"},
        {**HI, **TOOLS, "n": 2, "logprobs": True, "top_logprobs": 2, "return_token_ids": True},
        {**HI, **TOOLS, "max_tokens": 40, "thinking": {"type": "enabled"}, "tool_choice": "auto"},
        {**HI, "separate_reasoning": False, "stop": ["so"], "priority": 1},
    ],
    "/v1/completions/render": [{"prompt": "hi"}, {"prompt": [[65], [66, 67]], "logprobs": 0}],
    "/v1/chat/completions/render": [
        {**HI, **TOOLS, "n": 2, "priority": 1},
        {**HI, "stream": True, "stream_options": {"include_usage": True}, "cache_salt": "x"},
    ],
    "/v1/messages": [
        MESSAGES,
        {**MESSAGES, "max_tokens": 20, "system": [{"type": "text", "text": "x"}]},
        {**MESSAGES, "stop_sequences": ["so"], "thinking": {"type": "disabled"}},
    ],
    "/v1/messages/count_tokens": [{"model": "default", "messages": SAID}],
    "/v1/responses": [
        RESPONSES,
        {"input": "hi", "instructions": "x", "metadata": {"a": "b"}, "store": False},
        {
            **RESPONSES,
            "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
            "top_logprobs": 2,
            "tool_choice": "auto",
        },
        {**RESPONSES, "max_output_tokens": 40, "reasoning": {"effort": "low"}, "temperature": 0.5},
    ],
    "/tokenize": [{"prompt": "hi"}, {"prompt": ["a", "b"]}, {**HI, **TOOLS}],
    "/v1/tokenize": [{"text": "hi", "add_special_tokens": False}],
    "/detokenize": [{"tokens": [65]}],
    "/v1/detokenize": [{"tokens": []}],
    "/abort_request": [{"rid": "x"}, {"abort_all": True}],
    "/flush_cache": [{}],
    "/start_profile": [{}, {"num_steps": 3, "activities": ["CPU"], "output_dir": "a"}],
    "/stop_profile": [{}],
}
STREAMED = (
    "/generate", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"
)  # fmt: skip


def closed(schema: Any) -> Any:
    """Return `schema` so that no record may have a property that it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    more = {"additionalProperties": False} if "properties" in schema else {}
    return {name: closed(value) for name, value in schema.items()} | more


def check(value: Any, schema: Any) -> None:
    jsonschema.Draft202012Validator(closed(schema)).validate(value)


async def document_of(server: Server) -> Json:
    return (await server.client.get("/openapi.json")).json()


def schema_of(operation: Json, status: str, kind: str = "application/json") -> Any:
    return operation["responses"][status]["content"][kind]["schema"]


@served(v4=True)
async def test_posts_and_their_replies_are_as_documented(server: Server) -> None:
    server.engine.reply = ANSWER
    document = await document_of(server)
    for path, bodies in POSTED.items():
        operation = document["paths"][path]["post"]
        for body in bodies:
            if "requestBody" in operation:
                check(body, operation["requestBody"]["content"]["application/json"]["schema"])

            reply = await server.post(path, body)

            assert reply.status_code == 200, reply.text
            if path == "/flush_cache":
                assert reply.headers["content-type"].startswith("text/plain")
            else:
                check(reply.json(), schema_of(operation, "200"))


@served(v4=True)
async def test_refusals_are_as_documented(server: Server) -> None:
    document = await document_of(server)
    wrong: list[Json] = [
        {"model": "another"},
        {"messages": 5, "rid": 5, "choices": 5, "num_steps": 0, "input": 5},
    ]
    for path in [path for path in POSTED if path not in ("/flush_cache", "/stop_profile")]:
        replies = [await server.post(path, {**POSTED[path][0], **more}) for more in wrong]
        refused = [reply.json() for reply in replies if reply.status_code != 200]

        assert refused, path
        for error in refused:
            check(error, schema_of(document["paths"][path]["post"], "4XX"))


@pytest.mark.parametrize("path", STREAMED)
@served(v4=True)
async def test_events_are_as_documented(server: Server, path: str) -> None:
    server.engine.reply, server.engine.step = ANSWER, 7
    operation = (await document_of(server))["paths"][path]["post"]
    options: Json = {"stream_options": {"include_usage": True}} if path in STREAMED[1:3] else {}
    for body in POSTED[path]:
        reply = await server.post(path, {**body, **options, "stream": True})

        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.text.splitlines() if line.startswith("data: ")]
        told = [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]
        assert len(told) > 2
        for event in told:
            check(event, schema_of(operation, "200", "text/event-stream"))


@served(v4=True)
async def test_what_is_asked_for_is_as_documented(server: Server) -> None:
    document = await document_of(server)
    kept = (await server.post("/v1/responses", {"input": "hi"})).json()["id"]
    asked = 0
    for path, operations in document["paths"].items():
        if "get" not in operations or path == "/health_generate":
            continue
        named = path.replace("{name}", "default").replace("{response_id}", kept)
        reply = await server.client.get(named)

        assert reply.status_code == 200, path
        contents = operations["get"]["responses"]["200"].get("content", {})
        assert bool(contents) == bool(reply.content), path
        for kind, content in contents.items():
            assert reply.headers["content-type"].startswith(kind), path
            if kind == "application/json":
                check(reply.json(), content["schema"])
        asked += 1
    assert asked > 15


def test_every_status_is_described() -> None:
    for path in ("/health", "/v1/messages", "/generate"):
        told = reply_documentation(path)
        assert all(reply["description"] for reply in told.values())
    assert set(reply_documentation("/health")) == {200, 503}


def test_a_field_that_is_refused_says_so() -> None:
    fields = request_schema(ChatBody)["properties"]

    assert fields["lora_path"]["description"] == "Not supported: there are no adapters."
    assert "description" not in fields["tool_choice"]
    assert "description" not in fields["logprobs"]
