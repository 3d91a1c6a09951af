"""One HTTP request, forwarded to a server: its head first, then its body as it comes.

Headers pass in both directions, except for those of the connection itself.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass

import httpx

__all__ = ["Head", "HttpRequest", "UpstreamFailed", "forward", "open_client"]

Headers = Sequence[tuple[bytes, bytes]]

# Source: RFC 9110, 7.6.1. The length is that of the body which is sent anew.
_OF_THE_CONNECTION = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"),
        *(b"transfer-encoding", b"expect"),
    }
)
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A client's request.

    path     raw, with the query if there is one
    number   identifies it to the router; -1: any replica may take it
    replica  the only one that may take it; None: the router chooses
    """

    method: str
    path: str
    headers: Headers
    body: bytes
    number: int = -1
    replica: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a reply."""

    status: int
    headers: Headers

    def value(self, name: bytes) -> bytes:
        """Return a header's value, b"" where there is none."""
        return next((value for key, value in self.headers if key.lower() == name), b"")


class UpstreamFailed(Exception):
    """The server could not be reached, or closed the connection early."""


def open_client(url: str) -> httpx.AsyncClient:
    """Return a client of a server; a reply may take any time, and requests are never limited."""
    return httpx.AsyncClient(
        base_url=url,
        timeout=httpx.Timeout(None, connect=_CONNECT_S),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        trust_env=False,
        follow_redirects=False,
    )


async def forward(
    client: httpx.AsyncClient, request: HttpRequest
) -> AsyncGenerator[Head | bytes, None]:
    """Yield the head of the reply, then its body in pieces; closing it disconnects.

    Raises UpstreamFailed where the server breaks off, before the head or after it.
    """
    sent = client.build_request(
        request.method,
        httpx.URL(client.base_url.copy_with(raw_path=request.path.encode("latin-1"))),
        headers=_passing(request.headers),
        content=request.body,
    )
    try:
        response = await client.send(sent, stream=True)
    except httpx.TransportError as fault:
        raise UpstreamFailed(f"{type(fault).__name__}: {fault}") from fault
    try:
        yield Head(response.status_code, _passing(response.headers.raw))
        async for piece in response.aiter_raw():
            yield piece
    except httpx.TransportError as fault:
        raise UpstreamFailed(f"{type(fault).__name__}: {fault}") from fault
    finally:
        await response.aclose()


def _passing(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _OF_THE_CONNECTION]
