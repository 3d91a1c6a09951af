"""16.0 is 16 wherever an integer is meant, in every dialect; 16.5 is a bad request."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from runtime.server.fields import as_body
from runtime.server.native_schema import GenerateBody
from runtime.server.whole_numbers import as_shape
from tests.runtime.server.engine import Server, served

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
# (path, body with integers as floats, the same body with integers)
BODIES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "/v1/completions",
        {"prompt": [65.0, 66.0], "max_tokens": 16.0, "n": 2.0, "seed": 3.0, "logprobs": 1.0},
        {"prompt": [65, 66], "max_tokens": 16, "n": 2, "seed": 3, "logprobs": 1},
    ),
    (
        "/v1/completions",
        {"prompt": [[65.0], [66]], "max_completion_tokens": 1e1, "top_k": 2e0, "best_of": 1.0},
        {"prompt": [[65], [66]], "max_completion_tokens": 10, "top_k": 2, "best_of": 1},
    ),
    (
        "/v1/chat/completions",
        {**HI, "max_tokens": 16.0, "stop_token_ids": [5.0], "logit_bias": {"5": 1}, "seed": -0.0},
        {**HI, "max_tokens": 16, "stop_token_ids": [5], "logit_bias": {"5": 1}, "seed": 0},
    ),
    (
        "/v1/chat/completions",
        {**HI, "max_completion_tokens": 9.0, "top_logprobs": 2.0, "logprobs": True, "n": 1.0},
        {**HI, "max_completion_tokens": 9, "top_logprobs": 2, "logprobs": True, "n": 1},
    ),
    (
        "/generate",
        {"text": "x", "sampling_params": {"max_new_tokens": 16.0, "min_new_tokens": 2.0}},
        {"text": "x", "sampling_params": {"max_new_tokens": 16, "min_new_tokens": 2}},
    ),
    (
        "/generate",
        {"input_ids": [[65.0, 66.0]], "sampling_params": [{"top_k": 3.0}], "priority": 2.0},
        {"input_ids": [[65, 66]], "sampling_params": [{"top_k": 3}], "priority": 2},
    ),
    (
        "/v1/messages",
        {"model": "tiny", "max_tokens": 3000.0, **HI,
         "thinking": {"type": "enabled", "budget_tokens": 2048.0}, "top_k": 4.0},
        {"model": "tiny", "max_tokens": 3000, **HI,
         "thinking": {"type": "enabled", "budget_tokens": 2048}, "top_k": 4},
    ),
]  # fmt: skip


def asked(request: Any, *, seeded: bool) -> dict[str, Any]:
    """Return what the scheduler reads of a request, without what the server drew for it."""
    told = msgspec.to_builtins(request)
    del told["request_id"]
    return told if seeded else told | {"sampling": {**told["sampling"], "seed": 0}}


@pytest.mark.parametrize(("path", "floats", "integers"), BODIES)
@pytest.mark.parametrize("stream", [False, True])
@served(v4=True)
async def test_whole_floats_are_taken_as_the_integers_they_are(
    server: Server, path: str, floats: dict[str, Any], integers: dict[str, Any], stream: bool
) -> None:
    seen: list[list[dict[str, Any]]] = []
    for body in (floats, integers):
        before = len(server.engine.requests)
        reply = await server.post(path, {**body, "stream": stream})
        assert reply.status_code == 200, reply.text
        new, seeded = server.engine.requests[before:], "seed" in body
        seen.append([asked(request, seeded=seeded) for request in new])

    assert seen[0] == seen[1]
    assert seen[0]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 16.5}, "max_tokens"),
        ("/v1/completions", {"prompt": "x", "n": 1.0000001}, "n"),
        ("/v1/completions", {"prompt": [1.0, 2.5]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1e300}, "max_tokens"),
        ("/v1/completions", {"prompt": [1e30]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 2.0, "n": "two"}, "n"),
        ("/v1/chat/completions", {**HI, "max_tokens": 16.5}, "max_tokens"),
        ("/v1/chat/completions", {**HI, "reasoning_effort": 1.0}, "reasoning_effort"),
        ("/generate", {"text": "x", "sampling_params": {"top_k": 2.5}}, "sampling_params.top_k"),
        ("/generate", {"input_ids": [1, 2.5]}, "input_ids"),
        ("/v1/messages", {"model": "tiny", "max_tokens": 9.5, **HI}, "max_tokens"),
        ("/detokenize", {"tokens": [65.5]}, "tokens"),
    ],
)
@served(v4=True)
async def test_another_float_is_refused_by_name(
    server: Server, path: str, body: dict[str, Any], named: str
) -> None:
    reply = await server.post(path, body)

    assert reply.status_code == 400
    assert named in reply.json()["error"]["message"]
    assert not server.engine.requests


@served(v4=True)
async def test_other_endpoints_take_whole_floats_too(server: Server) -> None:
    assert (await server.post("/detokenize", {"tokens": [65.0, 66.0]})).status_code == 200
    scored = await server.post("/score", {"text": "hi", "choices": [[70.0]], "priority": 1.0})
    assert scored.status_code == 200, scored.text


@served(v4=True)
async def test_a_schema_keeps_its_floats(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number", "maximum": 3.0}}}
    body = {**HI, "max_tokens": 9.0, "json_schema": schema}

    assert (await server.post("/v1/chat/completions", body)).status_code == 200

    grammar = server.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert json.dumps(json.loads(grammar.text)) == json.dumps(schema)


def test_python_values_are_taken_alike() -> None:
    values = {"input_ids": [1.0, 2], "sampling_params": {"max_new_tokens": np.float64(4)}}

    body = as_body(values, GenerateBody)

    assert msgspec.to_builtins(body.input_ids) == [1, 2]
    assert repr(body.input_ids) == "[1, 2]"
    assert "max_new_tokens=4," in repr(body.sampling_params)


def test_floats_and_anything_are_left_as_they_are() -> None:
    class Shape(msgspec.Struct):
        number: int | float
        anything: Any
        several: list[int] | dict[str, Any] | None
        ratio: float = 0.0

    made = as_shape({"number": 2.0, "anything": 3.0, "several": [4.0], "ratio": 5.0}, Shape)

    got = repr((made.number, made.anything, made.several, made.ratio))
    assert got == "(2.0, 3.0, [4], 5.0)"
