"""Prompts are what servers would compute, in every dialect, key and salt."""

import asyncio
import json
from typing import Any

import pytest

from runtime.command_line import parse_args
from runtime.replicas.prompt_reader import GENERATES, Prompt, PromptReader
from runtime.replicas.upstream import HttpRequest
from runtime.server.namespaces import CacheNamespaces
from runtime.supervision import resolve

FACTS = {"context_length": 1024, "vocab_size": 2048, "model_type": "deepseek_v4"}
TURN = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "hello"},
    "/v1/completions": {"prompt": ["hello", "other"]},
    "/v1/chat/completions": {"messages": TURN},
    "/v1/messages": {"model": "default", "max_tokens": 4, "messages": TURN},
    "/v1/responses": {"model": "default", "input": "hello"},
    "/score": {"text": "hello", "choices": [" a", " b"]},
}


@pytest.fixture(scope="module")
def reader() -> PromptReader:
    """A reader for servers with a key."""
    return PromptReader(resolve(parse_args(["--api-key", "right"])), FACTS)


def read(reader: PromptReader, path: str, body: Any, key: str = "right") -> Prompt | None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer " + key.encode()),
    ]
    return asyncio.run(reader.read(HttpRequest("POST", path, headers, data)))


def test_every_dialect_has_its_prompt_streamed_or_not(reader: PromptReader) -> None:
    assert set(BODIES) == GENERATES
    found = {path: read(reader, path, body) for path, body in BODIES.items()}

    assert all(prompt is not None for prompt in found.values()), found
    ids = {path: prompt.tokens.tolist() for path, prompt in found.items() if prompt}
    assert ids["/generate"] == ids["/v1/completions"]
    assert ids["/v1/chat/completions"] == ids["/v1/responses"] == ids["/v1/messages"]
    assert len(ids["/v1/chat/completions"]) > len(ids["/generate"]) > 0
    assert ids["/score"] == ids["/generate"][: len(ids["/score"])] != []
    for path in GENERATES - {"/score"}:
        streamed = read(reader, path, {**BODIES[path], "stream": True})
        assert streamed is not None
        assert streamed.tokens.tolist() == ids[path]


def test_ids_are_taken_as_they_are(reader: PromptReader) -> None:
    prompt = read(reader, "/generate", {"input_ids": [5, 6, 7]})

    assert prompt is not None
    assert prompt.tokens.tolist() == [5, 6, 7]


def test_namespaces_are_those_of_a_server_with_the_key(reader: PromptReader) -> None:
    names = CacheNamespaces("right")

    for salt in (None, "one", "two"):
        prompt = read(reader, "/generate", {"input_ids": [5], "cache_salt": salt})
        assert prompt is not None
        assert prompt.namespace == names.of(salt)


def test_what_a_server_refuses_has_no_prompt(reader: PromptReader) -> None:
    assert read(reader, "/generate", {"input_ids": [5]}, key="wrong") is None
    for body in (b"{", {}, {"input_ids": []}, {"input_ids": [9999]}, {"text": 5}):
        assert read(reader, "/generate", body) is None
    assert read(reader, "/generate", {"input_ids": [1] * 2000}) is None
    assert read(reader, "/v1/chat/completions", {"messages": TURN, "model": "other"}) is None
    assert read(reader, "/tokenize", {"text": "hello"}) is None
