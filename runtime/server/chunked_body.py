"""Chunks of a streamed reply, written to the connection without the layers of ASGI.

Each middleware wraps `send`, and h11 builds and checks an object for each chunk. That was a third
of what an event of one token costs the process.
"""

import asyncio
import weakref
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

__all__ = ["ChunkedBody", "chunked_body", "offer_chunked_body"]

_EXTENSION = "umbra.chunked_body"


class ChunkedBody:
    """Writes chunks of one reply.

    `http.response.start`, without a length, and the last `http.response.body` go through ASGI's
    `send`. Chunks between them need no state of h11, which therefore does not miss them.

    held_bytes  memory of what is still to be encoded and sent
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        # The cycle's scope has this body: each keeping the other, a connection would be garbage
        # that only a full collection finds.
        self._cycle = weakref.ref(cycle)
        self._flow = cycle.flow
        self._transport = cycle.transport
        self.held_bytes = 0

    async def send(self, data: bytes) -> None:
        """Write one chunk; wait first while the client reads slower than it is written to.

        Does nothing for empty data, which would end the reply, and once the client has left.
        """
        if self._flow.write_paused:
            await self._flow.drain()
        cycle = self._cycle()
        if cycle is None or cycle.disconnected:
            await asyncio.sleep(0)  # who waits for that has a turn, and ends the stream
        elif data:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def offer_chunked_body(cycle: RequestResponseCycle | None) -> ChunkedBody | None:
    """Let the handler of a request find the body of its reply, where that will be chunked.

    cycle  of the latest request of a connection; None: there was none yet
    Returns that body.
    """
    if cycle is None:
        return None
    scope: dict[str, Any] = cycle.scope  # pyright: ignore[reportAssignmentType]
    if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
        body = chunked_body(scope) or ChunkedBody(cycle)
        scope.setdefault("extensions", {})[_EXTENSION] = body
        return body
    return None


def chunked_body(scope: Scope) -> ChunkedBody | None:
    """Return the body of the reply to a request; None where it must go through `send`."""
    body = scope.get("extensions", {}).get(_EXTENSION)
    return body if isinstance(body, ChunkedBody) else None
