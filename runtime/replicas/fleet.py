"""The interface between the front and what runs the servers."""

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from runtime.replicas.board import RoutedRequest
from runtime.replicas.upstream import Head, HttpRequest

__all__ = ["Fleet", "ReplicaGone", "Reply", "fetch"]


class ReplicaGone(Exception):
    """A replica died or broke off; `started`: after the head of its reply."""


class Fleet(Protocol):
    """Servers by name, as Ray Serve runs them, or a test."""

    def names(self) -> Sequence[str]:
        """Return the replicas that take requests now."""
        ...

    def open(
        self, request: HttpRequest, routed: RoutedRequest, avoid: Collection[str] = ()
    ) -> AsyncGenerator[Head | bytes, None]:
        """Send a request; yield the head of the reply, then its body. Closing it hangs up.

        routed   what is known of it; where the fleet chooses, `routed.replica` is set by then
        avoid    replicas that are taken only where there is no other
        Raises ReplicaGone; where there is no replica it waits for one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply of one replica; status 0: there was none."""

    replica: str
    status: int
    media_type: str
    body: bytes

    def json(self) -> object:
        """Return the parsed body, None where it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None


async def fetch(fleet: Fleet, request: HttpRequest) -> Reply:
    """Return the whole reply of the replica that `request` names."""
    name = request.replica or ""
    head: Head | None = None
    pieces: list[bytes] = []
    stream = fleet.open(request, RoutedRequest(None))
    try:
        async for part in stream:
            if isinstance(part, Head):
                head = part
            else:
                pieces.append(part)
    except ReplicaGone as gone:
        return Reply(name, 0, "text/plain", str(gone).encode())
    finally:
        await stream.aclose()
    if head is None:
        return Reply(name, 0, "text/plain", b"no reply")
    kind = head.value(b"content-type").decode("latin-1")
    return Reply(name, head.status, kind, b"".join(pieces))
