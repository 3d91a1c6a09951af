"""Forwarding to a fake server over real sockets: heads, pieces, hang-ups on both sides."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import httpx
import pytest

from runtime.replicas.upstream import Head, HttpRequest, UpstreamFailed, forward, open_client

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
GET = HttpRequest("GET", "/metrics?x=%2F", [(b"accept", b"*/*")], b"")


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[httpx.AsyncClient]:
    """Run a server that answers one way, and yield a client of it."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    async with server, open_client(f"http://{host}:{port}") as client:
        yield client


async def read_request(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    """Return request line, headers and body."""
    line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {k.lower(): v for k, _, v in (header.partition(": ") for header in rest) if k}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return line, headers, body


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(bounded())


def test_requests_and_replies_pass_but_for_the_connection_s_own_headers() -> None:
    seen: list[tuple[str, dict[str, str], bytes]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(b"HTTP/1.1 429 Slow\r\nRetry-After: 3\r\nX-A: 1\r\nX-A: 2\r\n")
        writer.write(b"Connection: close\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        writer.close()

    async def test() -> None:
        headers = [
            *((b"x-api-key", b"k"), (b"traceparent", b"00-1-2-01"), (b"x-session-id", b"s")),
            *((b"connection", b"close"), (b"transfer-encoding", b"chunked")),
        ]
        async with serving(answer) as client:
            request = HttpRequest("POST", "/v1/x%20y?a=%2Fb", headers, b"\x00body")
            head, *pieces = [part async for part in forward(client, request)]
        assert isinstance(head, Head)
        assert (head.status, head.value(b"retry-after")) == (429, b"3")
        assert [v for n, v in head.headers if n.lower() == b"x-a"] == [b"1", b"2"]
        assert head.value(b"connection") == b""
        assert pieces == [b"no"]

    run(test)
    [(line, headers, body)] = seen
    assert line == "POST /v1/x%20y?a=%2Fb HTTP/1.1"
    assert (headers["x-api-key"], headers["traceparent"]) == ("k", "00-1-2-01")
    assert (headers["x-session-id"], body) == ("s", b"\x00body")
    assert headers["connection"] == "keep-alive"
    assert "transfer-encoding" not in headers


def test_pieces_come_as_they_are_written_and_a_hang_up_reaches_the_server() -> None:
    hung_up = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await writer.drain()
        assert await reader.read() == b""
        hung_up.set()
        writer.close()

    async def test() -> None:
        async with serving(answer) as client:
            async with aclosing(forward(client, GET)) as parts:
                assert isinstance(await anext(parts), Head)
                assert await anext(parts) == b"a"
                assert not hung_up.is_set()
            await hung_up.wait()

    run(test)


def test_a_server_that_breaks_off_is_told_from_one_that_ends() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await writer.drain()
        writer.close()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.close()

    async def test() -> None:
        parts: list[Head | bytes] = []
        async with serving(answer) as client, aclosing(forward(client, GET)) as stream:
            parts += [await anext(stream), await anext(stream)]
            with pytest.raises(UpstreamFailed):
                await anext(stream)
        assert parts[1:] == [b"a"]
        async with serving(silent) as client:
            with pytest.raises(UpstreamFailed):
                await anext(forward(client, GET))
        async with open_client("http://127.0.0.1:1") as nobody:
            with pytest.raises(UpstreamFailed):
                await anext(forward(nobody, GET))

    run(test)
