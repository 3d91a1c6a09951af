"""Streams on real connections: what a client reads, and what happens when it does not."""

import gc
import re
import socket
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from runtime.errors import RequestFailed
from runtime.server.arrival import protocol_class
from runtime.server.chunked_body import ChunkedBody, chunked_body
from runtime.server.open_connections import OpenConnections
from runtime.server.replies import EventStream
from runtime.server.unread_replies import UnreadReplies

EVENTS = [b"data: %d\n\n" % k for k in range(300)]
# Together more than the buffers of both sockets hold.
LARGE_BYTES, LARGE_EVENTS = 1 << 20, 64


class App:
    """Answers every request with a stream.

    direct  whether the last stream was written to the connection itself
    bodies  those that live of what streams were written to
    pulled  large events taken from the generator
    closed  set when a generator of large events has ended
    """

    def __init__(self) -> None:
        self.direct = False
        self.bodies: weakref.WeakSet[ChunkedBody] = weakref.WeakSet()
        self.pulled = 0
        self.closed = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        body = chunked_body(scope)
        self.direct = body is not None
        if body is not None:
            self.bodies.add(body)
        events = {"/small": self._small, "/large": self._large, "/fails": self._fails}
        await EventStream(events[scope["path"]]())(scope, receive, send)

    async def _small(self) -> AsyncGenerator[bytes, None]:
        yield b""
        for event in EVENTS:
            yield event

    async def _fails(self) -> AsyncGenerator[bytes, None]:
        yield EVENTS[0]
        raise RequestFailed("broke")

    async def _large(self) -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(LARGE_EVENTS):
                self.pulled += 1
                yield b"x" * LARGE_BYTES
        finally:
            self.closed.set()


@contextmanager
def serving(app: App) -> Iterator[int]:
    """Serve on a port, which is yielded."""
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=protocol_class(OpenConnections(100), UnreadReplies()),
            lifespan="off",
            log_level="error",
        )
    )
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)


def request(path: str, *, version: str = "1.1", method: str = "POST", last: bool = True) -> bytes:
    close = "Connection: close\r\n" if last else ""
    return f"{method} {path} HTTP/{version}\r\nHost: x\r\n{close}\r\n".encode()


def read_all(client: socket.socket) -> bytes:
    pieces: list[bytes] = []
    while piece := client.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def unchunked(body: bytes) -> tuple[bytes, bytes]:
    """Return the content of a chunked body, and what follows it."""
    content = b""
    while True:
        size, body = body.split(b"\r\n", 1)
        length = int(size, 16)
        content, end, body = content + body[:length], body[length : length + 2], body[length + 2 :]
        assert end == b"\r\n"
        if not length:
            return content, body


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def test_chunks_make_up_the_events() -> None:
    app = App()
    with serving(app) as port, connected(port) as client:
        client.sendall(request("/small"))
        head, body = read_all(client).split(b"\r\n\r\n", 1)

    assert app.direct
    assert b"transfer-encoding: chunked" in head.lower()
    assert unchunked(body) == (b"".join(EVENTS) + b"data: [DONE]\n\n", b"")


def test_an_ended_stream_is_freed_without_a_collection() -> None:
    app = App()
    gc.disable()
    try:
        with serving(app) as port:
            with connected(port) as client:
                client.sendall(request("/small"))
                read_all(client)
            deadline = time.monotonic() + 10.0
            while app.bodies and time.monotonic() < deadline:
                time.sleep(0.01)
            assert app.direct
            assert not app.bodies
    finally:
        gc.enable()


def test_a_connection_serves_the_requests_that_follow_a_stream() -> None:
    with serving(App()) as port, connected(port) as client:
        client.sendall(request("/small", last=False) * 2 + request("/fails"))
        rest = read_all(client)

    for _ in range(2):
        head, rest = rest.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200")
        content, rest = unchunked(rest)
        assert content.endswith(EVENTS[-1] + b"data: [DONE]\n\n")
    content, rest = unchunked(rest.split(b"\r\n\r\n", 1)[1])
    assert re.search(rb'"message":"broke".*\n\ndata: \[DONE\]\n\n$', content, re.DOTALL)
    assert rest == b""


@pytest.mark.parametrize(
    ("version", "method", "content"),
    [("1.0", "POST", b"".join(EVENTS) + b"data: [DONE]\n\n"), ("1.1", "HEAD", b"")],
)
def test_replies_that_have_no_chunks_get_none(version: str, method: str, content: bytes) -> None:
    app = App()
    with serving(app) as port, connected(port) as client:
        client.sendall(request("/small", version=version, method=method))
        _, body = read_all(client).split(b"\r\n\r\n", 1)

    assert not app.direct
    assert body == content


def test_a_client_that_does_not_read_holds_the_stream_back_until_it_leaves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()
    with serving(app) as port:
        with connected(port) as client:
            client.sendall(request("/large"))
            client.recv(1)
            before = -1
            while app.pulled != before:
                before = app.pulled
                time.sleep(0.2)
            assert 0 < app.pulled < LARGE_EVENTS
        assert app.closed.wait(30)
    # asyncio complains of what is written to a connection that is gone.
    assert not caplog.records


def test_the_stream_of_a_client_that_never_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.server.unread_replies.STALL_S", 0.3)
    monkeypatch.setattr("runtime.server.unread_replies._LOOK_S", 0.05)
    app = App()
    with serving(app) as port, connected(port) as client:
        client.sendall(request("/large"))

        assert app.closed.wait(30)
        assert app.pulled < LARGE_EVENTS
