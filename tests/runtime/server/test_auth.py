"""Tests of runtime.server.auth."""

import pytest

from runtime.config import ServerConfig
from runtime.errors import BadRequest
from runtime.messages import Generate
from runtime.server.auth import CacheNamespaces
from tests.runtime.server.engine import Server, served

KEY = "s3cret-kéy"
CONFIG = ServerConfig(model_path="/m", served_model_name="tiny", api_key=KEY)
PATHS = (
    "/generate",
    "/v1/models",
    "/v1/completions",
    "/server_info",
    "/flush_cache",
    "/health_generate",
    "/health/",
    "/health/x",
    "/metrics/",
    "//health",
    "/docs",
    "/openapi.json",
    "/nope",
)


@pytest.mark.parametrize("path", PATHS)
@served(CONFIG)
async def test_every_path_but_an_exact_few_needs_the_key(server: Server, path: str) -> None:
    reply = await server.client.get(path)

    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    if path.startswith("/v1/"):
        assert reply.json()["error"]["code"] == "invalid_api_key"
    else:
        assert set(reply.json()["error"]) == {"message"}


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
@served(CONFIG)
async def test_probes_and_metrics_are_open(server: Server, path: str) -> None:
    assert (await server.client.get(path)).status_code == 200


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {KEY}", KEY, f"Bearer {KEY}x", "Bearer \xff"],
)
@served(CONFIG)
async def test_a_wrong_key_is_refused(server: Server, value: str) -> None:
    headers = [(b"authorization", value.encode())]

    reply = await server.client.get("/v1/models", headers=headers)

    assert reply.status_code == 401


@pytest.mark.parametrize(
    ("name", "value"),
    [("authorization", f"Bearer {KEY}"), ("Authorization", f"bearer  {KEY}"), ("x-api-key", KEY)],
)
@served(CONFIG)
async def test_the_key_is_taken_from_either_header(server: Server, name: str, value: str) -> None:
    reply = await server.client.get("/v1/models", headers=[(name.encode(), value.encode())])

    assert reply.status_code == 200


@served(CONFIG)
async def test_a_keyed_server_documents_itself_to_nobody(server: Server) -> None:
    for path in ("/docs", "/openapi.json", "/redoc"):
        reply = await server.client.get(path, headers={b"x-api-key": KEY.encode()})
        assert reply.status_code == 404


@served()
async def test_a_salt_reaches_the_scheduler_as_a_namespace(server: Server) -> None:
    for salt in ("", "a", "b", "a"):
        await server.post("/generate", {"text": "x", "cache_salt": salt})
    await server.post("/v1/completions", {"prompt": "x", "cache_salt": "a"})
    chat = {"messages": [{"role": "user", "content": "x"}], "cache_salt": "a"}
    await server.post("/v1/chat/completions", chat)

    requests: list[Generate] = server.engine.requests
    plain, a, b, *again = [request.namespace for request in requests]
    assert plain == ""
    assert len({plain, a, b}) == 3
    assert again == [a, a, a]


def test_keys_salts_and_extra_keys_all_separate_namespaces() -> None:
    names = {
        CacheNamespaces(key).of(salt, extra)
        for key in (None, "k1", "k2")
        for salt in (None, "x", "y")
        for extra in (None, "x", "y")
    }

    assert len(names) == 27
    assert all(len(name) in (0, 32) for name in names)


@pytest.mark.parametrize("salt", ["x" * 129, "a b", "a\n", "é", "\x00", "{}"])
def test_a_salt_of_other_characters_is_refused(salt: str) -> None:
    with pytest.raises(BadRequest, match="cache_salt"):
        CacheNamespaces(None).of(salt)
