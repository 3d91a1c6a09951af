"""Tests of runtime.server.replies: who leaves is noticed, and what he asked for ends."""

import asyncio
import json
import selectors
from collections.abc import AsyncGenerator
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from starlette.requests import Request

from runtime.errors import Aborted, QueueFull, RequestFailed
from runtime.server.replies import (
    KEEP_ALIVE,
    NATIVE_KEEP_ALIVE,
    EventStream,
    events,
    until_disconnect,
)
from tests.runtime.server.engine import Server, served

STREAMS = (
    ("/generate", {"text": "hi"}),
    ("/generate", {"text": ["a", "b"], "sampling_params": {"n": 2}}),
    ("/v1/completions", {"prompt": "hi", "n": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    (
        "/v1/messages",
        {"model": "default", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    ),
)


class Connection:
    """One ASGI exchange whose client can leave at any time.

    sent    what the application sent
    leave   the client goes away
    """

    def __init__(self, path: str = "/x", body: Any = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.leave = asyncio.Event()
        self.said = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.said.set()

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    @property
    def status(self) -> int:
        return self.sent[0]["status"]


@pytest.mark.parametrize(("path", "body"), STREAMS)
@served()
async def test_leaving_a_stream_aborts_all_of_it(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    server.engine.hold.clear()
    connection = Connection(path, {**body, "stream": True})
    exchange = asyncio.ensure_future(
        server.app(connection.scope, connection.receive, connection.send)
    )
    await connection.said.wait()

    connection.leave.set()
    await exchange

    await asyncio.sleep(0)
    wanted = {request.request_id for request in server.engine.requests}
    assert set(server.engine.aborted) == wanted
    assert len(server.engine.aborted) == len(wanted)
    assert server.manager.in_flight == 0


@pytest.mark.parametrize(("path", "body"), STREAMS)
@served()
async def test_leaving_before_an_answer_aborts_all_of_it(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    server.engine.hold.clear()
    connection = Connection(path, body)
    exchange = asyncio.ensure_future(
        server.app(connection.scope, connection.receive, connection.send)
    )
    while not server.engine.requests or server.manager.in_flight != len(server.engine.requests):
        await asyncio.sleep(0)

    connection.leave.set()
    await exchange

    assert set(server.engine.aborted) == {r.request_id for r in server.engine.requests}
    assert server.manager.in_flight == 0


@served()
async def test_a_server_that_cancels_a_stream_aborts_it(server: Server) -> None:
    server.engine.hold.clear()
    connection = Connection("/generate", {"text": "hi", "stream": True})
    exchange = asyncio.ensure_future(
        server.app(connection.scope, connection.receive, connection.send)
    )
    await connection.said.wait()

    exchange.cancel()
    await asyncio.gather(exchange, return_exceptions=True)

    assert len(server.engine.aborted) == 1
    assert server.manager.in_flight == 0


async def stream_of(*items: bytes | Exception | None) -> AsyncGenerator[bytes, None]:
    """Yield bytes, raise exceptions, and for None wait forever."""
    for item in items:
        if item is None:
            await asyncio.Event().wait()
        elif isinstance(item, Exception):
            raise item
        else:
            yield item


async def exchange(
    stream: EventStream, connection: Connection, *, leave_after: str | None = None
) -> None:
    await connection.receive()  # the request's body
    task = asyncio.ensure_future(stream(connection.scope, connection.receive, connection.send))
    if leave_after is not None:
        while leave_after not in connection.text:
            await asyncio.sleep(0.001)
        connection.leave.set()
    await asyncio.wait_for(task, 60)


def test_a_silent_stream_says_that_it_lives() -> None:
    async def scenario() -> None:
        connection = Connection()
        stream = EventStream(stream_of(b"data: 1\n\n", None), keep_alive_s=0.01)
        await exchange(stream, connection, leave_after=(KEEP_ALIVE * 2).decode())
        assert connection.text.startswith("data: 1\n\n: keep-alive\n\n")

    asyncio.run(scenario())


class Clock(selectors.DefaultSelector):
    """A clock that jumps where a loop would sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, without waiting."""
        ready = super().select(0)
        self.now += 0.0 if ready else timeout or 0.0
        return ready


@pytest.mark.parametrize("first", [None, b"data: 1\n\n"])
def test_no_stream_is_silent_for_longer_than_five_seconds(first: bytes | None) -> None:
    clock, connection, times = Clock(), Connection(), list[float]()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now

    async def send(message: Any) -> None:
        times.append(clock.now)
        await connection.send(message)
        if len(times) > 6:
            connection.leave.set()

    async def scenario() -> None:
        stream = EventStream(stream_of(first, None))
        await connection.receive()
        await stream(connection.scope, connection.receive, send)

    with closing(loop):
        loop.run_until_complete(scenario())

    assert len(times) > 6
    silences = [then - before for before, then in pairwise([0.0, *times])]
    assert max(silences) <= 5.01
    assert connection.text.count(": keep-alive\n\n") >= 5


def test_a_silent_native_stream_sends_only_what_clients_that_parse_each_line_skip() -> None:
    async def scenario() -> None:
        connection = Connection()
        stream = EventStream(
            stream_of(b"data: 1\n\n", None), keep_alive=NATIVE_KEEP_ALIVE, keep_alive_s=0.01
        )
        await exchange(stream, connection, leave_after="data: 1\n\n\n\n\n")
        lines = [line for line in connection.text.splitlines() if line.strip()]
        assert lines == ["data: 1"]

    asyncio.run(scenario())


def test_a_stream_that_takes_its_time_begins_without_its_first_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.server.replies._REFUSAL_GRACE_S", 0.01)

    async def scenario() -> None:
        connection = Connection()
        stream = EventStream(stream_of(None), keep_alive_s=0.01)
        await exchange(stream, connection, leave_after=KEEP_ALIVE.decode())
        assert connection.status == 200

    asyncio.run(scenario())


def test_a_refusal_before_the_first_event_is_an_ordinary_reply() -> None:
    async def scenario() -> None:
        connection = Connection()
        await exchange(EventStream(stream_of(QueueFull("full"))), connection)
        assert connection.status == 429
        assert json.loads(connection.text) == {"error": {"message": "full"}}

    asyncio.run(scenario())


def test_a_failure_after_the_first_event_is_an_event() -> None:
    async def scenario() -> None:
        connection = Connection("/v1/x")
        failing = stream_of(b"data: 1\n\n", RequestFailed("broke"))
        await exchange(EventStream(failing), connection)
        first, error, done, rest = connection.text.split("\n\n")
        assert (connection.status, first, done, rest) == (200, "data: 1", "data: [DONE]", "")
        assert json.loads(error.removeprefix("data: "))["error"]["message"] == "broke"

    asyncio.run(scenario())


def test_a_stream_of_named_events_breaks_with_one_and_ends_as_asked() -> None:
    async def chunks() -> AsyncGenerator[dict[str, str], None]:
        yield {"type": "a"}
        raise RequestFailed("broke")

    async def scenario() -> None:
        connection = Connection("/v1/messages")
        await exchange(EventStream(events(chunks(), named=True), done=b""), connection)
        first, error, rest = connection.text.split("\n\n")
        assert (first, rest) == ('event: a\ndata: {"type":"a"}', "")
        assert error.startswith('event: error\ndata: {"type":"error"')

    asyncio.run(scenario())


def test_events_are_not_to_be_cached_or_measured() -> None:
    async def scenario() -> None:
        connection = Connection()
        await exchange(EventStream(stream_of(b"data: 1\n\n")), connection)
        headers = dict(connection.sent[0]["headers"])
        assert headers[b"content-type"].startswith(b"text/event-stream")
        assert headers[b"cache-control"] == b"no-cache"
        assert b"content-length" not in headers
        assert connection.sent[-1] == {
            "type": "http.response.body",
            "body": b"",
            "more_body": False,
        }

    asyncio.run(scenario())


def test_work_whose_client_leaves_is_cancelled() -> None:
    async def scenario() -> None:
        connection = Connection()
        await connection.receive()
        cancelled = asyncio.Event()

        async def work() -> None:
            connection.leave.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        with pytest.raises(Aborted):
            await until_disconnect(Request(connection.scope, connection.receive), work())
        assert cancelled.is_set()

    asyncio.run(scenario())
