"""Tests of runtime.server.info."""

import asyncio
from datetime import UTC, datetime

import pytest

from runtime.config import ServerConfig
from tests.runtime.server.engine import CONTEXT_TOKENS, EOS, VOCAB_SIZE, Server, served

KEYED = ServerConfig(model_path="/m", served_model_name="tiny", api_key="topsecret")


@served()
async def test_the_one_model_is_listed_and_found(server: Server) -> None:
    listed = (await server.client.get("/v1/models")).json()
    found = (await server.client.get("/v1/models/tiny")).json()

    assert (listed["object"], listed["data"]) == ("list", [found])
    assert (found["id"], found["object"], found["owned_by"]) == ("tiny", "model", "sglang")
    assert found["max_model_len"] == CONTEXT_TOKENS
    # Anthropic's clients look for these.
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("tiny", "tiny", False)
    assert (found["type"], found["display_name"]) == ("model", "tiny")
    assert datetime.fromisoformat(found["created_at"]).timestamp() == found["created"]
    assert (await server.client.get("/v1/models/other")).status_code == 404
    assert (await server.client.get("/v1/models//models/tiny")).status_code == 200


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
@served()
async def test_the_model_is_described_under_both_names(server: Server, path: str) -> None:
    info = (await server.client.get(path)).json()

    assert {
        "model_path", "served_model_name", "tokenizer_path", "is_generation", "weight_version",
        "load_format", "reasoning_parser", "tool_call_parser", "model_type", "architectures",
    } <= set(info)  # fmt: skip
    assert info["is_generation"] is True
    assert info["architectures"] == ["A"]


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
@served(KEYED)
async def test_the_server_tells_its_settings_but_not_its_key(server: Server, path: str) -> None:
    reply = await server.client.get(path, headers={"x-api-key": "topsecret"})

    assert "topsecret" not in reply.text
    info = reply.json()
    assert info["max_running_requests"] == server.manager.rows
    assert (info["context_tokens"], info["vocab_size"]) == (CONTEXT_TOKENS, VOCAB_SIZE)
    assert info["eos_token_ids"] == [EOS]
    assert info["internal_states"][0]["full_pages"] == 10.0
    assert info["version"]
    assert info["status"] == "ready"


@served()
async def test_loads_are_told_for_routers(server: Server) -> None:
    reply = (await server.client.get("/v1/loads?include=core,disagg,queues,memory")).json()

    [load] = reply["loads"]
    assert load["num_running_reqs"] == 0
    # As text: the gateway drops a reply in which it is a number.
    assert datetime.fromisoformat(reply["timestamp"]).tzinfo is UTC


@served()
async def test_routers_of_older_servers_find_what_they_ask_for(server: Server) -> None:
    [rank] = (await server.client.get("/get_load")).json()

    assert rank == {"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}
    assert (await server.client.get("/version")).json()["version"]


@served()
async def test_the_cache_is_flushed_only_while_nothing_runs(server: Server) -> None:
    assert (await server.client.post("/flush_cache")).status_code == 200

    server.engine.hold.clear()
    running = asyncio.ensure_future(server.post("/generate", {"text": "x"}))
    while not server.engine.requests:
        await asyncio.sleep(0)
    refused = await server.client.post("/flush_cache")
    server.engine.hold.set()
    await running

    assert refused.status_code == 400
    assert "requests run" in refused.json()["error"]["message"]


@served()
async def test_everything_can_be_aborted_at_once(server: Server) -> None:
    server.engine.hold.clear()
    running = [
        asyncio.ensure_future(server.post("/generate", {"text": "x", "rid": f"r{k}"}))
        for k in range(3)
    ]
    while len(server.engine.requests) < 3:
        await asyncio.sleep(0)

    reply = await server.post("/abort_request", {"abort_all": True})

    assert reply.json() == {"aborted": 3}
    for answer in await asyncio.gather(*running):
        assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": None, "abort_all": False}, {"rid": 5}])
@served()
async def test_an_abort_of_nobody_is_refused(server: Server, body: dict[str, object]) -> None:
    assert (await server.post("/abort_request", body)).status_code == 400
