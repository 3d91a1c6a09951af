"""Tests of runtime.server.request_id."""

import pytest

from tests.runtime.server.engine import Server, served


@served()
async def test_a_plain_request_id_comes_back(server: Server) -> None:
    reply = await server.client.get("/nope", headers={"X-Request-Id": "abc-1"})

    assert reply.headers["x-request-id"] == "abc-1"


@pytest.mark.parametrize("value", [b"x" * 129, b"a b", b"\xff", b""])
@served()
async def test_any_other_request_id_is_not_repeated(server: Server, value: bytes) -> None:
    reply = await server.client.get("/health", headers=[(b"X-Request-Id", value)])

    assert "x-request-id" not in reply.headers
