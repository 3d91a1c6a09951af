"""Connections on which a request is to arrive: for how long they are kept open.

Each costs an open file, of which a process has few, and uvicorn closes those alone that wait for
another request.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from runtime.server.chunked_body import offer_chunked_body

__all__ = ["REQUEST_S", "TimedProtocol"]

# Seconds that a request has to arrive whole, from its first byte or, the first one, from the
# beginning of its connection: the longest body, 32 MiB, at 2 Mbit/s.
REQUEST_S = 128.0


class TimedProtocol(H11Protocol):
    """Closes a connection whose request does not arrive in time."""

    _out_of_time: asyncio.TimerHandle | None = None

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, transport: asyncio.Transport
    ) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Take what came, and wait on where a request is not whole by it."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._await_request()
        else:
            self._await_nothing()

    def handle_events(self) -> None:
        """Begin the requests that are there; the task of each starts after this."""
        super().handle_events()
        offer_chunked_body(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._await_nothing()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        if self._out_of_time is None:
            self._out_of_time = self.loop.call_later(REQUEST_S, self.transport.close)

    def _await_nothing(self) -> None:
        if self._out_of_time is not None:
            self._out_of_time.cancel()
            self._out_of_time = None
