"""Tests of runtime.lang.connection: errors, patience, streams."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from runtime.errors import (
    Aborted,
    BadRequest,
    NotFound,
    QueueFull,
    RequestError,
    RequestFailed,
    Unauthorized,
    Unavailable,
)
from runtime.lang.connection import MAX_REQUESTS, Connection

Handler = Callable[[httpx.Request], Any]


def run(handler: Handler, work: Callable[[Connection], Awaitable[Any]]) -> Any:
    """Return what `work` returns with a connection to `handler`."""

    async def scenario() -> Any:
        transport = httpx.MockTransport(handler)
        connection = Connection("http://server/", api_key="key", transport=transport)
        try:
            return await work(connection)
        finally:
            await connection.aclose()

    return asyncio.run(scenario())


def test_bodies_and_the_key_are_sent() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"ok": True})

    assert run(handler, lambda c: c.post("/generate", {"a": 1})) == {"ok": True}
    assert run(handler, lambda c: c.get("/server_info")) == {"ok": True}
    assert str(seen[0].url) == "http://server/generate"
    assert seen[0].headers["authorization"] == "Bearer key"
    assert seen[0].content == b'{"a":1}'


def test_a_key_may_be_any_text() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    async def ask() -> None:
        transport = httpx.MockTransport(handler)
        await Connection("http://server", api_key="clé", transport=transport).get("/server_info")

    asyncio.run(ask())

    assert (b"Authorization", "Bearer clé".encode()) in seen[0].headers.raw


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (401, Unauthorized),
        (404, NotFound),
        (413, BadRequest),
        (499, Aborted),
        (500, RequestFailed),
        (503, Unavailable),
    ],
)
def test_refusals_come_as_our_errors_with_the_servers_words(
    status: int, kind: type[RequestError]
) -> None:
    body = {"error": {"message": "too long", "param": "text", "code": "c"}}

    with pytest.raises(kind, match="too long") as caught:
        run(lambda _: httpx.Response(status, json=body), lambda c: c.post("/x", {}))

    assert (caught.value.status, caught.value.param, caught.value.code) == (status, "text", "c")


def test_a_reply_that_is_no_json_is_shown() -> None:
    with pytest.raises(RequestFailed, match="<html>"):
        run(lambda _: httpx.Response(502, text="<html>"), lambda c: c.post("/x", {}))


def test_a_reply_of_another_kind_fails() -> None:
    with pytest.raises(RequestFailed, match="no JSON"):
        run(lambda _: httpx.Response(200, text="<html>"), lambda c: c.get("/x"))


def test_a_server_that_is_not_there_is_unavailable() -> None:
    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async def stream(connection: Connection) -> None:
        async for _ in connection.events("/x", {}):
            pass

    for work in (
        lambda c: c.post("/x", {}),
        lambda c: c.get("/x"),
        lambda c: c.status("/x"),
        stream,
    ):
        with pytest.raises(Unavailable, match="server does not answer: refused"):
            run(gone, work)


@pytest.mark.parametrize("value", ["a\ud800", math.nan, math.inf])
def test_what_no_json_can_say_is_a_bad_request_and_is_not_sent(value: Any) -> None:
    sent: list[httpx.Request] = []

    async def stream(connection: Connection) -> None:
        async for _ in connection.events("/x", {"text": value}):
            pass

    for work in (lambda c: c.post("/x", {"text": value}), stream):
        with pytest.raises(BadRequest, match="cannot be written as JSON"):
            run(sent.append, work)

    assert sent == []


def test_a_full_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = [
        httpx.Response(429, headers={"Retry-After": "0"}, json={"error": {"message": "full"}}),
        httpx.Response(429, json={"error": {"message": "full"}}),
        httpx.Response(200, json=3),
    ]
    monkeypatch.setattr("random.uniform", lambda low, high: 0.0)

    assert run(lambda _: replies.pop(0), lambda c: c.post("/x", {})) == 3

    monkeypatch.setattr("runtime.lang.patience.PATIENCE_S", -1.0)
    full = httpx.Response(429, headers={"Retry-After": "7"}, json={"error": {"message": "full"}})
    with pytest.raises(QueueFull, match="full") as caught:
        run(lambda _: full, lambda c: c.post("/x", {}))
    assert caught.value.retry_after_s == 7


def sse(*lines: str) -> Handler:
    async def content() -> AsyncIterator[bytes]:
        for line in lines:
            yield f"{line}\n\n".encode()

    return lambda _: httpx.Response(200, content=content())


async def read(connection: Connection) -> list[Any]:
    return [event async for event in connection.events("/x", {})]


def test_events_end_with_done() -> None:
    assert run(sse("data: 1", ": keep-alive", "", 'data: {"a": 2}', "data: [DONE]"), read) == [
        1,
        {"a": 2},
    ]


def test_an_event_may_hold_what_ends_lines_elsewhere() -> None:
    assert run(sse('data: "a\u2028b\u2029c\u0085d"', "data: [DONE]"), read) == [
        "a\u2028b\u2029c\u0085d"
    ]


def test_a_stream_that_breaks_off_or_says_an_error_fails() -> None:
    with pytest.raises(RequestFailed, match="broke off"):
        run(sse("data: 1"), read)
    with pytest.raises(RequestFailed, match="no luck"):
        run(sse('data: {"error": {"message": "no luck"}}', "data: [DONE]"), read)


@pytest.mark.parametrize(
    ("told", "kind", "status"),
    [
        ({"type": "service_unavailable"}, Unavailable, 503),
        ({"type": "aborted", "code": "c"}, Aborted, 499),
        ({"type": "invalid_request_error"}, BadRequest, 400),
        ({"type": "authentication_error"}, Unauthorized, 401),
        ({"type": "internal_error"}, RequestFailed, 500),
        ({"type": ["of", "another", "server"]}, RequestFailed, 500),
    ],
    ids=lambda value: str(value.get("type")) if isinstance(value, dict) else "",
)
def test_an_error_amid_a_stream_is_of_the_kind_it_says(
    told: dict[str, Any], kind: type[RequestError], status: int
) -> None:
    event = json.dumps({"error": {"message": "no luck", **told}})

    with pytest.raises(RequestError, match="no luck") as caught:
        run(sse("data: 1", f"data: {event}", "data: [DONE]"), read)

    assert (type(caught.value), caught.value.status) == (kind, status)
    assert caught.value.code == told.get("code")


def test_only_so_many_requests_are_under_way() -> None:
    running, most = 0, 0

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return httpx.Response(200, json=1)

    async def many(connection: Connection) -> int:
        return sum(await asyncio.gather(*(connection.post("/x", {}) for _ in range(500))))

    assert run(handler, many) == 500
    assert most <= MAX_REQUESTS


class Dropping:
    """A server that answers so many requests of each connection, and drops it at the next one.

    seen  requests
    """

    def __init__(self, answers: int) -> None:
        self.seen = 0
        self._answers = answers
        self._tasks: list[asyncio.Task[Any] | None] = []

    async def serve(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        """Return what `work` returns with a connection to this server."""
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            connection = Connection(f"http://127.0.0.1:{port}")
            try:
                return await work(connection)
            finally:
                await connection.aclose()
                await asyncio.gather(*filter(None, self._tasks))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for left in range(self._answers, -1, -1):
                await reader.readuntil(b"\r\n\r\n{}")
                self.seen += 1
                if left:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def test_a_request_that_meets_a_closing_connection_is_sent_again() -> None:
    server = Dropping(answers=1)

    async def work(connection: Connection) -> list[Any]:
        return [await connection.post("/generate", {}) for _ in range(4)]

    assert asyncio.run(server.serve(work)) == [{}] * 4
    assert server.seen == 4 + 3


def test_a_request_that_a_new_connection_drops_is_not_sent_again() -> None:
    server = Dropping(answers=0)

    with pytest.raises(Unavailable, match="does not answer"):
        asyncio.run(server.serve(lambda connection: connection.post("/generate", {})))

    assert server.seen == 1


KEY = "sk-secret-of-the-test"


async def last_error(handler: Handler, base_url: str = "http://server") -> RequestError:
    """Return the error of a request that is sent with a key."""
    transport = httpx.MockTransport(handler)
    connection = Connection(base_url, api_key=KEY, transport=transport)
    with pytest.raises(RequestError) as caught:
        await connection.post("/x", {})
    with pytest.raises(RequestError):
        await connection.status("/x")
    return caught.value


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", ["http://elsewhere/x", "/y"])
def test_a_redirect_is_an_error_and_nothing_is_sent_there(status: int, location: str) -> None:
    sent: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(status, headers={"Location": location})

    error = asyncio.run(last_error(handler))

    assert f"redirects to {location}" in str(error)
    assert {str(request.url) for request in sent} == {"http://server/x"}


def test_the_key_is_in_no_error() -> None:
    def echoing(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"error": {"message": f"no such key: {KEY}"}})

    def plain(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, text=f"headers: Bearer {KEY}")

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"cannot send {KEY}")

    for handler in (echoing, plain, gone):
        error = asyncio.run(last_error(handler, "http://me:password@server/v1?a=b"))
        assert "***" in str(error)
        assert KEY not in str(error)
        assert "password" not in str(error)
        assert error.__cause__ is None
    assert KEY not in repr(vars(Connection("http://server"))) + repr(
        Connection("http://server", api_key=KEY)
    )


def test_the_key_is_in_no_reply_that_is_shown() -> None:
    async def event(connection: Connection) -> None:
        async for _ in connection.events("/x", {}):
            pass

    for text, work in ((f"<{KEY}>", lambda c: c.post("/x", {})), (f"data: {KEY}\n\n", event)):

        async def scenario(text: str = text, work: Any = work) -> None:
            transport = httpx.MockTransport(lambda _: httpx.Response(200, text=text))
            await work(Connection("http://server", api_key=KEY, transport=transport))

        with pytest.raises(RequestFailed, match=r"no JSON: '.*\*\*\*"):
            asyncio.run(scenario())


def test_a_short_key_is_a_placeholder_and_hides_nothing() -> None:
    error = httpx.Response(400, json={"error": {"message": "a key of the body is unknown"}})

    with pytest.raises(BadRequest, match="a key of the body"):
        run(lambda _: error, lambda c: c.post("/x", {}))


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:30000", "http://api.example/v1"])
def test_proxies_are_used_except_for_this_machine(
    base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    made: list[dict[str, Any]] = []

    class Client(httpx.AsyncClient):
        def __init__(self, **options: Any) -> None:
            made.append(options)
            super().__init__(**options)

    monkeypatch.setattr("httpx.AsyncClient", Client)
    Connection(base_url)._open()

    assert [options["trust_env"] for options in made] == ["127.0.0.1" not in base_url]
