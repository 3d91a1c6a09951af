"""Connections on which no whole request arrives are closed; others are not."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import uvicorn

from runtime.server.arrival import protocol_class
from runtime.server.open_connections import OpenConnections
from runtime.server.unread_replies import UnreadReplies

PATIENCE_S = 0.3
MOST = 20
HEAD = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n"


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the length of the body, some time after it is there."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await asyncio.sleep(2 * PATIENCE_S)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server whose patience is short, and its port."""
    monkeypatch.setattr("runtime.server.arrival.HEAD_S", PATIENCE_S)
    monkeypatch.setattr("runtime.server.arrival.REQUEST_S", PATIENCE_S)
    protocol = protocol_class(OpenConnections(MOST), UnreadReplies())
    server = uvicorn.Server(uvicorn.Config(_echo, http=protocol, lifespan="off", log_level="error"))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def client(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as mine:
        yield mine


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST / HTTP/1.1\r\nHost:", HEAD, HEAD + b"12345"],
    ids=["nothing", "half a head", "no body", "half a body"],
)
def test_a_request_that_does_not_come_is_not_waited_for(client: socket.socket, sent: bytes) -> None:
    client.sendall(sent)

    assert client.recv(1000) == b""


def test_time_is_not_won_by_sending_slowly(client: socket.socket) -> None:
    client.settimeout(PATIENCE_S / 10)
    sent, closed = 0, False
    while not closed and sent < 1000:
        client.sendall(b"P")
        sent += 1
        with suppress(TimeoutError):
            closed = client.recv(1000) == b""

    assert closed


def test_an_answer_takes_as_long_as_it_takes_and_another_request_follows(
    client: socket.socket,
) -> None:
    for _ in range(2):
        client.sendall(HEAD + b"0123456789")

        reply = b""
        while not reply.endswith(b"\r\n\r\n10"):
            more = client.recv(1000)
            assert more
            reply += more
        assert reply.startswith(b"HTTP/1.1 200")


def test_request_smuggling_ends_with_the_connection(client: socket.socket) -> None:
    second = b"GET /server_info HTTP/1.1\r\nHost: here\r\n\r\n"
    head = HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    client.sendall(head + b"0\r\n\r\n" + second)

    reply = b""
    while more := client.recv(1000):
        reply += more
    assert reply.startswith(b"HTTP/1.1 400")
    assert reply.count(b"HTTP/1.1") == 1


def test_a_body_that_breaks_off_is_refused(
    client: socket.socket,
) -> None:
    head = b"GET / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    client.sendall(head + b"2\r\nab\r\nno length\r\n")

    reply = client.recv(1000)
    assert reply.startswith(b"HTTP/1.1 400")


def test_slowloris_connections_leave_a_place_for_a_probe(port: int) -> None:
    with ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            for _ in range(3 * MOST)
        ]
        for one in slow:
            with suppress(OSError):
                one.sendall(b"GET / HTTP")
        probe = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        probe.sendall(HEAD + b"0123456789")

        assert probe.recv(1000).startswith(b"HTTP/1.1 200")
