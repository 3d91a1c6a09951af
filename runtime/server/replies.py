"""Replies that follow their client: what nobody waits for any more is cancelled.

A stream owns its events: however it ends, the generator behind it is closed, and with it the
request it came from.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runtime.errors import Aborted, RequestError
from runtime.server.chunked_body import chunked_body
from runtime.server.errors import dialect_of, error_event, error_response
from runtime.server.json_slices import held_bytes, is_long, json_slices

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# For the native dialect, whose clients parse every line that is not empty as an event.
NATIVE_KEEP_ALIVE = b"\n"
# Proxies and clients close a connection that is silent for 20 to 60 s. A reply that is not streamed
# sends nothing before it is complete: after the first byte its status could not change any more.
KEEP_ALIVE_S = 5.0
# A refusal (too long, queue full) comes back from the scheduler at once: worth waiting for, since
# after the headers it could no longer be a status.
_REFUSAL_GRACE_S = 1.0
_LEAST_PIECE_BYTES = 1 << 16

_Result = TypeVar("_Result")


def json_reply(body: Any) -> Response:
    """Return `body` as a JSON reply; numbers must be finite, for JSON has no others."""
    if is_long(body):
        return LongReply(body)
    return Response(msgspec.json.encode(body), media_type="application/json")


class LongReply(Response):
    """A JSON reply that is encoded as its client reads it; others have turns meanwhile."""

    def __init__(self, body: Any) -> None:
        super().__init__(media_type="application/json")
        del self.headers["content-length"]
        self._pieces = json_slices(body)
        self._held_bytes = held_bytes(body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or stop when the client has left."""
        gone = asyncio.ensure_future(_disconnected(receive))
        written = chunked_body(scope)
        if written is not None:
            written.held_bytes = self._held_bytes
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            held = bytearray()
            for piece in self._pieces:
                held += piece
                if len(held) >= _LEAST_PIECE_BYTES:
                    await _send_body(send, bytes(held))
                    held.clear()
                await asyncio.sleep(0)
                if gone.done():
                    return
            await send({"type": "http.response.body", "body": bytes(held), "more_body": False})
        finally:
            if written is not None:
                written.held_bytes = 0
            await _cancel(gone)


def event(body: Any, name: str | None = None) -> bytes:
    """Return `body` as one server-sent event, named where clients tell events by their names."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(body) + b"\n\n"


async def events(
    chunks: AsyncGenerator[Any, None], *, named: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yield each chunk as a server-sent event; closing it closes `chunks`.

    named  give each event the name that is the chunk's `type`
    """
    async with aclosing(chunks):
        async for chunk in chunks:
            yield event(chunk, chunk["type"] if named else None)


async def until_disconnect(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what `work` returns; cancel it when the client leaves first.

    The request's body must have been read. Raises Aborted in the second case.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Aborted("the client left before its request was finished")
    finally:
        await _cancel(task, gone)


class EventStream(Response):
    """Server-sent events from a generator, with `keep_alive` sent while it is silent.

    A RequestError before the first event becomes an ordinary error reply; later it becomes an
    error event. `done` is sent at the end of both.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        keep_alive: bytes = KEEP_ALIVE,
        done: bytes = DONE,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._events = events
        self._keep_alive = keep_alive
        self._done = done
        self._keep_alive_s = keep_alive_s
        self._write: Callable[[bytes], Awaitable[None]] | None = None
        self._clock: Callable[[], float] = float
        self._sending = False
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or stop when the client has left."""
        self._clock = asyncio.get_running_loop().time
        pump = asyncio.ensure_future(self._pump(scope, receive, send))
        watch = asyncio.ensure_future(self._watch(receive))
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
        finally:
            await _cancel(pump, watch)

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        dialect = dialect_of(scope)
        async with aclosing(self._events) as events:
            try:
                first = await self._first(events, scope, send)
                if first is not None:
                    await self._send(first)
                    async for data in events:
                        await self._send(data)
            except RequestError as error:
                if self._write is None:
                    await error_response(error, dialect)(scope, receive, send)
                    return
                await self._send(error_event(error, dialect))
            if self._done:
                await self._send(self._done)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _first(
        self, events: AsyncGenerator[bytes, None], scope: Scope, send: Send
    ) -> bytes | None:
        """Start the reply with the first event, or without it when that takes its time."""
        first = asyncio.ensure_future(anext(events, None))
        try:
            await asyncio.wait({first}, timeout=_REFUSAL_GRACE_S)
            if first.done():
                first.result()
            await self._start(scope, send)
            return await first
        finally:
            await _cancel(first)

    async def _start(self, scope: Scope, send: Send) -> None:
        headers = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(headers)
        body = chunked_body(scope)
        self._write = partial(_send_body, send) if body is None else body.send
        self._last_sent = self._clock()

    async def _send(self, data: bytes) -> None:
        assert self._write is not None, "the reply has not begun"
        self._sending = True
        await self._write(data)
        self._sending = False
        self._last_sent = self._clock()

    async def _watch(self, receive: Receive) -> None:
        """Return when the client has left; until then break silences."""
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            while not gone.done():
                silent_s = self._clock() - self._last_sent if self._write is not None else 0.0
                wait_s = max(self._keep_alive_s - silent_s, 0.0)
                if wait_s == 0.0 and not self._sending:
                    await self._send(self._keep_alive)
                    continue
                await asyncio.wait({gone}, timeout=wait_s or self._keep_alive_s)
        finally:
            await _cancel(gone)


async def _send_body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
