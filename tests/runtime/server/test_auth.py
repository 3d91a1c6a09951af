"""Tests of runtime.server.auth."""

import pytest

from runtime.config import ServerConfig
from tests.runtime.server.engine import Server, served

KEY = "s3cret-kéy"
CONFIG = ServerConfig(model_path="/m", served_model_name="tiny", api_key=KEY)
PATHS = (
    "/generate",
    "/v1/models",
    "/v1/completions",
    "/server_info",
    "/flush_cache",
    "/start_profile",
    "/cache",
    "//",
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
    # Two slashes at the beginning of a relative URL would name a host.
    reply = await server.client.get(f"http://localhost{path}")

    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    if path.startswith("/v1/"):
        assert reply.json()["error"]["code"] == "invalid_api_key"
    else:
        assert set(reply.json()["error"]) == {"message"}


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics"])
@served(CONFIG)
async def test_the_empty_page_probes_and_metrics_are_open(server: Server, path: str) -> None:
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
