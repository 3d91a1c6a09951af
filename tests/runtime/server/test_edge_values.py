"""The ends of the ranges of sampling fields, which clients really send, in every dialect."""

from typing import Any

import pytest

from tests.runtime.server.engine import Server, served

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
PATHS: dict[str, dict[str, Any]] = {
    "/generate": {"text": "x"},
    "/v1/completions": {"prompt": "x", "max_tokens": 3},
    "/v1/chat/completions": {**HI, "max_tokens": 3},
    "/v1/messages": {**HI, "model": "tiny", "max_tokens": 3},
}
EVERYWHERE: list[dict[str, Any]] = [
    {"temperature": 0}, {"temperature": 0.0}, {"temperature": -0.0}, {"temperature": 1},
    {"temperature": 2}, {"top_p": 0}, {"top_p": 0.0}, {"top_p": 1}, {"top_p": 1e-9},
    {"top_k": 0}, {"top_k": -1}, {"top_k": 1}, {"top_k": 1_000_000}, {"top_k": 40.0},
    {"min_p": 0}, {"min_p": 1}, {"seed": 0}, {"seed": -1}, {"seed": (1 << 63) - 1},
    {"temperature": 0, "top_p": 0, "top_k": 1, "min_p": 1},
]  # fmt: skip
NOT_IN_MESSAGES: list[dict[str, Any]] = [
    {"n": 1}, {"n": 2}, {"n": 1.0}, {"presence_penalty": -2}, {"presence_penalty": 2.0},
    {"frequency_penalty": -2.0}, {"frequency_penalty": 2}, {"repetition_penalty": 1},
    {"repetition_penalty": 0.01}, {"logit_bias": {"5": -100, "6": 100}}, {"logit_bias": {}},
    {"stop": []}, {"stop_token_ids": []}, {"stop": None, "logit_bias": None, "n": None},
]  # fmt: skip
REFUSED: list[dict[str, Any]] = [
    {"top_p": -0.01}, {"top_p": 1.01}, {"top_k": -2}, {"top_k": 0.5}, {"min_p": 1.5},
    {"temperature": -1}, {"top_p": "0"}, {"top_p": True}, {"temperature": [0]},
]  # fmt: skip


def with_sampling(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    return PATHS[path] | ({"sampling_params": fields} if path == "/generate" else fields)


@pytest.mark.parametrize("path", PATHS)
@served(v4=True)
async def test_the_ends_of_each_range_are_taken(server: Server, path: str) -> None:
    for fields in EVERYWHERE + (NOT_IN_MESSAGES if path != "/v1/messages" else []):
        reply = await server.post(path, with_sampling(path, fields))

        assert reply.status_code == 200, (fields, reply.text)
        sampling = server.engine.requests[-1].sampling
        if fields.get("top_p") == 0 or fields.get("temperature") == 0:
            assert sampling.temperature == 0, fields
        assert sampling.top_k == fields.get("top_k", -1) or fields["top_k"] in (0, 1_000_000)


@pytest.mark.parametrize("path", PATHS)
@served(v4=True)
async def test_what_lies_beyond_is_refused_by_name(server: Server, path: str) -> None:
    for fields in REFUSED:
        reply = await server.post(path, with_sampling(path, fields))

        assert reply.status_code == 400, fields
        assert next(iter(fields)) in reply.json()["error"]["message"]
    assert not server.engine.requests
