"""DNS rebinding and cross-site requests: pages of others neither read nor change anything."""

import pytest

from runtime.config import ServerConfig
from tests.runtime.server.engine import Server, served

NAMED = ServerConfig(model_path="/m", allowed_hosts=("Umbra.example", "pages.example"))
ANY = ServerConfig(model_path="/m", allowed_hosts=("*",))
OPEN = ServerConfig(model_path="/m", host="0.0.0.0", insecure=True)
CROSS = {"sec-fetch-site": "cross-site", "origin": "http://pages.example"}


async def asked(server: Server, host: str) -> int:
    return (await server.client.get("/server_info", headers={"host": host})).status_code


async def flushed(server: Server, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await server.client.post("/flush_cache", headers=named)).status_code


@served()
async def test_dns_rebinding_finds_no_name_that_is_answered_to(server: Server) -> None:
    for host in (
        "localhost",
        "localhost:30000",
        "a.localhost",
        "127.0.0.1:1",
        "[::1]:1",
        "10.0.0.9",
    ):
        assert await asked(server, host) == 200, host
    for host in ("evil.example", "evil.example:30000", "127.0.0.1.evil.example", "localhosts", "["):
        assert await asked(server, host) == 403, host


@served(NAMED)
async def test_a_name_that_is_given_is_answered_to(server: Server) -> None:
    assert await asked(server, "umbra.example:30000") == 200
    assert await asked(server, "evil.example") == 403


@served(OPEN)
async def test_off_loopback_any_name_is_answered_to(server: Server) -> None:
    assert await asked(server, "umbra.example") == 200
    assert await flushed(server, sec_fetch_site="cross-site") == 403


@served(ANY)
async def test_a_star_allows_everything(server: Server) -> None:
    assert await asked(server, "evil.example") == 200
    assert await flushed(server, **{"sec_fetch_site": "cross-site"}) == 200


@served()
async def test_a_cross_site_request_changes_nothing(server: Server) -> None:
    assert await flushed(server, origin="http://evil.example") == 403
    assert await flushed(server, origin="null") == 403
    assert await flushed(server, origin="http://localhost:81") == 403
    assert await flushed(server, sec_fetch_site="same-site") == 403
    assert (await server.client.post("/stop_profile", headers=CROSS)).status_code == 403
    assert (await server.client.post("/abort_request", json={}, headers=CROSS)).status_code == 403
    for method in ("GET", "HEAD"):
        assert (await server.client.request(method, "/flush_cache")).status_code == 405


@served()
async def test_clients_that_are_no_browsers_and_own_pages_change_what_they_ask(
    server: Server,
) -> None:
    assert await flushed(server) == 200
    assert await flushed(server, origin="http://localhost") == 200
    assert await flushed(server, sec_fetch_site="same-origin", origin="http://a.example") == 200


@served(NAMED)
async def test_pages_of_a_site_that_is_given_change_what_they_ask(server: Server) -> None:
    reply = await server.client.post("/flush_cache", headers=CROSS)

    assert reply.status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/messages"])
@served()
async def test_the_refusal_speaks_the_dialect(server: Server, path: str) -> None:
    reply = await server.client.post(path, headers={"origin": "http://evil.example"})

    assert reply.status_code == 403
    assert "--allowed-hosts" in reply.json()["error"]["message"]
