"""What a request leaves out is what the checkpoint recommends, in every dialect."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.server.sampling_defaults import sampling_defaults
from tests.runtime.server.engine import serving

HELLO = [{"role": "user", "content": "Hello"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/generate": {"text": "x"},
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/messages": {"model": "default", "messages": HELLO, "max_tokens": 9},
}


def config(folder: Path, said: object) -> ServerConfig:
    """Return the settings of a server whose checkpoint says this."""
    (folder / "generation_config.json").write_text(json.dumps(said), "utf-8")
    return ServerConfig(model_path=str(folder))


def defaults(folder: Path, said: object) -> dict[str, Any]:
    return dict(sampling_defaults(config(folder, said), vocab_size=100))


def test_what_the_checkpoint_says_of_sampling_is_taken(tmp_path: Path) -> None:
    said = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "eos_token_id": 1}

    found = defaults(tmp_path, {**said, "do_sample": True, "repetition_penalty": None})

    assert found == {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1}


@pytest.mark.parametrize("said", [{}, {"temperature": 0.6}])
def test_a_checkpoint_that_does_not_sample_is_greedy(tmp_path: Path, said: dict[str, Any]) -> None:
    assert defaults(tmp_path, {"do_sample": False, **said}) == {"temperature": 0.0}


def test_nothing_is_said_without_the_file_or_where_openais_are_wanted(tmp_path: Path) -> None:
    assert not sampling_defaults(ServerConfig(model_path=str(tmp_path)), vocab_size=9)
    assert not sampling_defaults(ServerConfig(), vocab_size=9)
    asked = replace(config(tmp_path, {"temperature": 0.5}), sampling_defaults="openai")
    assert not sampling_defaults(asked, vocab_size=9)


@pytest.mark.parametrize(
    "said",
    [{"temperature": -1}, {"top_p": "much"}, {"top_k": 2.5}, {"min_p": True}, ["temperature"]],
)
def test_what_cannot_be_is_refused_at_start(tmp_path: Path, said: object) -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        defaults(tmp_path, said)


def test_a_file_that_is_no_json_is_refused_at_start(tmp_path: Path) -> None:
    asked = config(tmp_path, {})
    (tmp_path / "generation_config.json").write_text("{", "utf-8")

    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        sampling_defaults(asked, vocab_size=9)


def sent(folder: Path, path: str, **fields: Any) -> tuple[float, int]:
    """Return temperature and top_k with which a request reached the scheduler."""

    async def scenario() -> tuple[float, int]:
        settings = config(folder, {"temperature": 0.25, "top_k": 3})
        async with asyncio.timeout(60), serving(settings, v4=True) as server:
            reply = await server.post(path, {**REQUESTS[path], **fields})
            assert reply.status_code == 200, reply.text
            sampling = server.engine.requests[0].sampling
            return sampling.temperature, sampling.top_k

    return asyncio.run(scenario())


@pytest.mark.parametrize("path", REQUESTS)
def test_a_request_that_says_nothing_is_sampled_as_the_checkpoint_says(
    tmp_path: Path, path: str
) -> None:
    assert sent(tmp_path, path) == (0.25, 3)


@pytest.mark.parametrize("path", REQUESTS)
def test_what_a_request_says_counts(tmp_path: Path, path: str) -> None:
    said: dict[str, Any] = {"temperature": 1.0}
    fields = {"sampling_params": said} if path == "/generate" else said

    assert sent(tmp_path, path, **fields) == (1.0, 3)


def test_clients_can_read_it(tmp_path: Path) -> None:
    async def scenario() -> dict[str, Any]:
        async with serving(config(tmp_path, {"do_sample": False})) as server:
            return (await server.client.get("/model_info")).json()["sampling_defaults"]

    assert asyncio.run(scenario()) == {"temperature": 0.0}
