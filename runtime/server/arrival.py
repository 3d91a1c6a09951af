"""Connections: which requests are taken from them, for how long they are kept open.

Each costs an open file, of which a process has few, and uvicorn closes those alone that wait for
another request.
"""

import asyncio
from http import HTTPStatus
from typing import cast

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from runtime.errors import Unavailable
from runtime.server.auth import OPEN_PATHS
from runtime.server.chunked_body import ChunkedBody, offer_chunked_body
from runtime.server.errors import dialect_of, error_response
from runtime.server.open_connections import OpenConnections
from runtime.server.request_head import StrictConnection
from runtime.server.unread_replies import UnreadReplies

__all__ = ["HEAD_S", "REQUEST_S", "ServerProtocol", "protocol_class"]

# Seconds that the head of a request has to arrive, from its first byte or, the first one, from the
# beginning of its connection.
HEAD_S = 30.0
# Seconds that the rest has: the longest body, 32 MiB, at 2 Mbit/s.
REQUEST_S = 128.0
# Bytes of one read. Each may hold thousands of chunks or requests, which are taken in one turn.
_READ_BYTES = 1 << 14
# After a refusal: time for the client to read it. What it still sends is dropped.
_LINGER_S = 1.0
_BIG_REPLY_BYTES = 1 << 20


def protocol_class(connections: OpenConnections, unread: UnreadReplies) -> type[H11Protocol]:
    """Return the protocol of a server that shares these among its connections."""

    class Protocol(ServerProtocol):
        shared_connections = connections
        shared_unread = unread

    return Protocol


class ServerProtocol(H11Protocol):
    """Closes a connection whose request does not arrive, or whose reply is not read, in time."""

    shared_connections: OpenConnections
    shared_unread: UnreadReplies
    conn: StrictConnection  # pyright: ignore[reportIncompatibleVariableOverride]

    _out_of_time: asyncio.TimerHandle | None = None
    _waits_for_head = True
    _refused = False
    _body: ChunkedBody | None = None
    _most_unread = 0

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, transport: asyncio.Transport
    ) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        transport.max_size = _READ_BYTES  # pyright: ignore[reportAttributeAccessIssue]
        self.conn = StrictConnection()
        if not self.shared_connections.add(self):
            self.app = _only_probes(self.app)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Take what came, and wait on where a request is not whole by it."""
        if self._refused:
            return
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._await_request()
        else:
            self._await_nothing()

    def handle_events(self) -> None:
        """Begin the requests that are there; the task of each starts after this."""
        super().handle_events()
        self._body = offer_chunked_body(self.cycle)

    def on_response_complete(self) -> None:
        """Wait for another request."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self.shared_connections.set_idle(self)

    def send_400_response(self, msg: str) -> None:
        """Refuse what came, with its own status, and close the connection."""
        self._refused = True
        self._await_nothing()
        # None before the first request.
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        refusal = self.conn.refusal
        status = 400 if refusal is None else refusal.error_status_hint
        text = (msg if refusal is None else str(refusal)).encode("ascii", "replace")
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(text)),
            (b"connection", b"close"),
        ]
        reason = HTTPStatus(status).phrase.encode()
        reply = h11.Response(status_code=status, headers=headers, reason=reason)
        for event in (reply, h11.Data(data=text), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        # Closed with data unread, a connection is reset, and its reply lost.
        self.transport.write_eof()
        self._out_of_time = self.loop.call_later(_LINGER_S, self.transport.abort)

    def pause_writing(self) -> None:
        """Watch whether the client reads."""
        super().pause_writing()
        self._most_unread = max(self._most_unread, self.unread_bytes())
        self.shared_unread.add(self)

    def resume_writing(self) -> None:
        """Write on."""
        self._is_read()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._await_nothing()
        self.shared_connections.remove(self)
        self._is_read()
        super().connection_lost(exc)

    def abandon(self) -> bool:
        """Close it at once; False where something is still to be written."""
        if self.transport.get_write_buffer_size():
            return False
        self.transport.abort()
        return True

    def unread_bytes(self) -> int:
        """Return how much waits to be written, and what it is made of."""
        held = 0 if self._body is None else self._body.held_bytes
        return held + self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Close it at once, whatever is still to be written."""
        self.transport.abort()

    def _is_read(self) -> None:
        self.shared_unread.remove(self, big=self._most_unread > _BIG_REPLY_BYTES)
        self._most_unread = 0

    def _await_request(self) -> None:
        """Wait for what is missing of a request; time is not won by sending slowly."""
        for_head = self.conn.their_state is h11.IDLE
        if self._out_of_time is not None and for_head == self._waits_for_head:
            return
        self._await_nothing()
        self.shared_connections.set_idle(self)
        self._waits_for_head = for_head
        limit_s = HEAD_S if for_head else REQUEST_S
        self._out_of_time = self.loop.call_later(limit_s, self.transport.close)

    def _await_nothing(self) -> None:
        self.shared_connections.set_busy(self)
        if self._out_of_time is not None:
            self._out_of_time.cancel()
            self._out_of_time = None


def _only_probes(app: ASGIApp) -> ASGIApp:
    """Return an application that answers 503 to all but what asks for health."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN_PATHS:
            await app(scope, receive, send)
            return
        error = Unavailable("too many connections: try again later")
        await error_response(error, dialect_of(scope))(scope, receive, send)

    return answer
