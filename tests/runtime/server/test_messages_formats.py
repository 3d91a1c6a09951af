"""`/v1/messages`: output formats are enforced, and redacted thinking stays out of the prompt."""

import json

import pytest

from tests.runtime.server.engine import Server, served
from tests.runtime.server.test_messages_api import COUNT, HI, PATH, Json

FORM: Json = {"type": "json_schema", "schema": {"type": "object"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "fields"),
    [("output_format", {"output_format": FORM}),
     ("output_config.format", {"output_config": {"format": FORM}})],
)  # fmt: skip
@served(v4=True)
async def test_a_format_is_followed_and_a_refusal_of_it_names_it(
    server: Server, name: str, fields: Json, stream: bool
) -> None:
    body = {**HI, **fields, "stream": stream, "max_tokens": 9}

    assert (await server.post(PATH, body)).status_code == 200

    grammar = server.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", FORM["schema"])
    server.engine.refuse = "grammar"
    refused = await server.post(PATH, body)
    assert f'"message":"{name}: ' in refused.text
    assert "invalid_request_error" in refused.text


@served(v4=True)
async def test_a_format_without_a_compiler_is_refused_by_its_name(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.server.grammars.find_spec", lambda _: None)
    for name, fields in (
        ("output_format", {"output_format": FORM}),
        ("output_config.format", {"output_config": {"format": FORM}}),
    ):
        reply = await server.post(PATH, {**HI, **fields})

        assert reply.status_code == 400
        assert reply.json()["error"]["message"].startswith(f"{name}: structured output needs")
    assert not server.engine.requests


@pytest.mark.parametrize("path", [PATH, COUNT])
@served(v4=True)
async def test_thinking_that_cannot_be_read_is_left_out_of_the_prompt(
    server: Server, path: str
) -> None:
    hidden: Json = {"type": "redacted_thinking", "data": "c2VjcmV0"}
    said: Json = {"type": "text", "text": "so"}
    more: Json = {"role": "user", "content": "and?"}
    replies: list[Json] = []
    for blocks in ([said], [hidden, said], [hidden, hidden, said, hidden]):
        messages = [*HI["messages"], {"role": "assistant", "content": blocks}, more]
        reply = await server.post(path, {**HI, "max_tokens": 5, "messages": messages})
        assert reply.status_code == 200, reply.text
        replies.append(reply.json())

    usage = [reply.get("usage", reply)["input_tokens"] for reply in replies]
    assert len(set(usage)) == 1
    assert len({request.input_ids for request in server.engine.requests}) == (path == PATH)
