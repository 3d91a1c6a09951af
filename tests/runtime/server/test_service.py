"""Tests of runtime.server.service."""

import asyncio
from typing import Any

import pytest

from runtime.config import ServerConfig
from runtime.sampling import SamplingSpec
from runtime.server.service import Service, served_name
from runtime.tokenizer.call import GenerateCall
from tests.runtime.server.engine import Server, served

CONFIG = ServerConfig(model_path="/models/tiny-v4/", served_model_name="umbra/tiny")


@pytest.mark.parametrize("name", ["umbra/tiny", "/models/tiny-v4/", "tiny-v4", "default", "", None])
@served(CONFIG)
async def test_the_model_has_several_names(server: Server, name: str | None) -> None:
    reply = await server.post("/v1/completions", {"prompt": "x", "model": name})

    assert reply.status_code == 200
    assert reply.json()["model"] == "umbra/tiny"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
@served(CONFIG)
async def test_another_model_is_not_found(server: Server, path: str) -> None:
    body = {"model": "gpt-4", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}

    reply = await server.post(path, body)

    assert reply.status_code == 404
    if path.startswith("/v1"):
        assert reply.json()["error"]["code"] == "model_not_found"
        assert reply.json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x", "n": 3}, "n"),
        ("/v1/completions", {"prompt": ["x", "y"], "n": 2}, "n"),
        ("/v1/completions", {"prompt": ["x", "y", "z"]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 3}, "n"),
        ("/generate", {"text": ["x", "y", "z"]}, None),
        ("/generate", {"text": "x", "sampling_params": {"n": 3}}, None),
    ],
)
@served(ServerConfig(max_queued_requests=1, max_running_requests=1))
async def test_more_than_the_server_ever_holds_is_refused_for_good(
    server: Server, path: str, body: dict[str, Any], param: str | None
) -> None:
    reply = await server.post(path, body)

    assert reply.status_code == 400
    assert "at most 2" in reply.json()["error"]["message"]
    assert reply.json()["error"].get("param") == param
    texts = {"text": ["x", "y", "z"]}
    assert (await server.post("/tokenize", texts)).status_code == 200  # none of them is admitted


@served(CONFIG)
async def test_the_state_is_the_last_heartbeat_where_nobody_answers(server: Server) -> None:
    service = server.app.state.service
    fresh = await service.state()
    server.manager.last_state = fresh
    server.manager.engine_died("killed")

    assert fresh.counters["evicted_pages"] == 2
    assert await service.state() is fresh


@served(CONFIG)
async def test_an_abort_asks_every_member_of_a_batch_before_it_waits_for_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    all_asked = asyncio.Event()

    async def abort(rid: str | None) -> int:
        asked.append(rid)
        if len(asked) == 3:
            all_asked.set()
        await all_asked.wait()
        return 1

    monkeypatch.setattr(server.manager, "abort", abort)
    service: Service = server.app.state.service
    calls = [GenerateCall(SamplingSpec(), text="x", rid=rid) for rid in ("r_0", "r_1")]

    with service.batches.named("r", calls):
        assert await service.abort("r") == 3
    assert asked == ["r_0", "r_1", "r"]


def test_without_a_served_name_the_path_is_the_name() -> None:
    assert served_name(ServerConfig(model_path="/m")) == "/m"
    assert served_name(ServerConfig()) == "default"
