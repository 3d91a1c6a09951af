"""Who asks reaches the scheduler as a share, a namespace and a time."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from runtime.config import ServerConfig
from runtime.messages import Generate
from runtime.server.know_caller import _address_share
from runtime.share import Share
from tests.runtime.server.engine import Server, served, serving

ROWS = [
    {"name": "a", "key": "ka", "weight": 2.0, "max_running": 3},
    {"name": "b", "key": "kb"},
    {"name": "c", "key": "kc", "shared": True},
    {"name": "d", "key": "kd", "shared": True},
    {"name": "ops", "key": "ko", "admin": True},
]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> ServerConfig:
    """Return the configuration of a server with several keys."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps(ROWS), "utf-8")
    return ServerConfig(model_path="/m", served_model_name="tiny", api_key_file=str(path))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_each_key_has_a_share_and_a_cache_of_its_own_but_for_shared_ones(
    keyed: ServerConfig,
) -> None:
    async def scenario() -> None:
        async with serving(keyed) as server:
            for key in ("ka", "kb", "kc", "kd", "ka"):
                await server.post("/generate", {"text": "x"}, authorization=f"Bearer {key}")
            chat = {"messages": [{"role": "user", "content": "x"}]}
            await server.post("/v1/chat/completions", chat, **{"x-api-key": "ka"})
            await server.post("/v1/completions", {"prompt": "x"}, **{"x-api-key": "ka"})
            score = {"text": "x", "choices": ["a"]}
            await server.post("/score", score, **{"x-api-key": "ka"})
            requests: list[Generate] = server.engine.requests

        a, b, c, d, *again = requests
        assert len(again) == 4
        assert {(r.namespace, r.share) for r in again} == {(a.namespace, a.share)}
        assert a.share == Share("a", 2.0, 3)
        assert [r.share.name for r in (b, c, d)] == ["b", "c", "d"]
        assert c.namespace == d.namespace
        assert len({r.namespace for r in (a, b, c)} | {""}) == 4
        assert not any("ka" in r.namespace for r in requests)

    run(scenario())


def test_a_salt_separates_inside_a_key_and_joins_no_two_keys(keyed: ServerConfig) -> None:
    async def scenario() -> None:
        async with serving(keyed) as server:
            for key in ("ka", "kb"):
                for salt in ("", "s"):
                    body = {"text": "x", "cache_salt": salt}
                    await server.post("/generate", body, **{"x-api-key": key})
            assert len({r.namespace for r in server.engine.requests}) == 4

    run(scenario())


def test_admin_endpoints_need_the_key_of_an_admin(keyed: ServerConfig) -> None:
    async def scenario() -> None:
        async with serving(keyed) as server:
            for path in ("/flush_cache", "/abort_request", "/start_profile", "/stop_profile"):
                refused = await server.post(path, {"rid": "x"}, **{"x-api-key": "ka"})
                assert refused.status_code == 403, path
                taken = await server.post(path, {"rid": "x"}, **{"x-api-key": "ko"})
                assert taken.status_code not in (401, 403), path
            for key, status in (("ka", 200), ("nope", 401)):
                reply = await server.client.get("/v1/models", headers={"x-api-key": key})
                assert reply.status_code == status
            info = await server.client.get("/server_info", headers={"x-api-key": "ka"})
            assert info.json()["api_key_file"] == "***"
            assert "keys.json" not in info.text

    run(scenario())


@served()
async def test_without_keys_an_address_is_a_share(server: Server) -> None:
    await server.post("/generate", {"text": "x"})

    assert server.engine.requests[0].share == Share("@127.0.0.1")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("10.0.0.7", "@10.0.0.7"),
        ("2001:db8:1:2:3::4", "@2001:db8:1:2::/64"),
        ("::ffff:10.0.0.7", "@10.0.0.7"),
        ("", "@"),
    ],
)
def test_a_network_of_ipv6_is_one_share(host: str, name: str) -> None:
    assert _address_share({"client": (host, 1)}).name == name


@served(ServerConfig(model_path="/m", served_model_name="tiny", api_key="k"))
async def test_one_key_is_one_share(server: Server) -> None:
    await server.post("/generate", {"text": "x"}, **{"x-api-key": "k"})

    assert server.engine.requests[0].share == Share()


@served()
async def test_a_client_says_how_long_its_request_may_take(server: Server) -> None:
    for value, status in (("2.5", 200), ("0", 400), ("nan", 400), ("x", 400), ("1e9", 400)):
        reply = await server.post("/generate", {"text": "x"}, **{"x-request-timeout": value})
        assert reply.status_code == status, value

    assert [r.timeout_s for r in server.engine.requests] == [2.5]


@pytest.mark.parametrize(
    ("reason", "status", "retry"),
    [("queue_full", 429, "7"), ("queue_timeout", 503, "7"), ("timeout", 504, None)],
)
@served()
async def test_who_waited_in_vain_is_told_when_to_come_back(
    server: Server, reason: str, status: int, retry: str | None
) -> None:
    server.engine.refuse = reason  # pyright: ignore[reportAttributeAccessIssue]

    for path, body in (("/generate", {"text": "x"}), ("/v1/completions", {"prompt": "x"})):
        reply = await server.post(path, body)
        assert (reply.status_code, reply.headers.get("retry-after")) == (status, retry)
