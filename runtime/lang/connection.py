"""One HTTP server: requests that wait when it is full, streams, and its errors as ours."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from runtime.errors import (
    Aborted,
    BadRequest,
    NotFound,
    QueueFull,
    RequestError,
    RequestFailed,
    Unauthorized,
    Unavailable,
)
from runtime.lang.bodies import wait
from runtime.lang.extra import require
from runtime.lang.lines import lines
from runtime.lang.loop import LOOP
from runtime.lang.patience import patiently

if TYPE_CHECKING:
    import httpx

# More requests than that wait on this side: a server's queue and its open files are finite.
MAX_REQUESTS = 128
CONNECT_S = 10.0

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_KINDS: dict[int, type[RequestError]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    429: QueueFull,
    499: Aborted,
    503: Unavailable,
}
# By the type that an error says: amid a stream it tells no status.
_STATUSES = {kind.kind: kind.status for kind in (BadRequest, *_KINDS.values())}


class Connection:
    """A pool of connections to one server; its coroutines belong to one event loop.

    Cancelling a request closes its connection, by which the server knows to end it.

    transport  what carries requests, for tests and Unix sockets; None: TCP
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        verify: bool = True,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        require("httpx")
        self.base_url = base_url.rstrip("/")
        # As bytes: httpx takes text for ASCII, and a key may be any text.
        self._headers = {} if api_key is None else {b"Authorization": f"Bearer {api_key}".encode()}
        self._verify = verify
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(MAX_REQUESTS)

    async def post(self, path: str, body: Any) -> Any:
        """Return the JSON reply to a JSON body. Raises RequestError."""
        async with self._slots:
            return _json(await self._send("POST", path, body))

    async def get(self, path: str) -> Any:
        """Return the JSON at `path`. Raises RequestError."""
        return _json(await self._send("GET", path, None))

    async def status(self, path: str) -> int:
        """POST without a body; return the status: 200, or 400. Raises RequestError for others."""
        import httpx

        try:
            response = await self._open().post(path)
        except httpx.TransportError as fault:
            raise self._gone(fault) from fault
        if response.status_code not in (200, 400):
            raise _error(response.status_code, response.text)
        return response.status_code

    async def events(self, path: str, body: Any) -> AsyncGenerator[Any, None]:
        """Yield the JSON of each server-sent event. Raises RequestError."""
        import httpx

        async with self._slots:
            try:
                response = await self._send("POST", path, body, stream=True)
                try:
                    async with aclosing(lines(response.aiter_bytes())) as told:
                        async for line in told:
                            if line == "data: [DONE]":
                                return
                            if line.startswith("data:"):
                                yield _event(line.removeprefix("data:"))
                finally:
                    await response.aclose()
            except httpx.TransportError as fault:
                raise self._gone(fault) from fault
        raise RequestFailed("the stream broke off")

    async def aclose(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open(self) -> "httpx.AsyncClient":
        import httpx

        if self._client is None:
            local = urlsplit(self.base_url).hostname in _LOCAL
            self._client = httpx.AsyncClient(
                base_url=self.base_url,
                headers=self._headers,
                verify=self._verify,
                transport=self._transport,
                # A reply takes as long as it takes; that a server is not there shows at once.
                timeout=httpx.Timeout(None, connect=CONNECT_S),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=MAX_REQUESTS),
                trust_env=not local,
            )
        return self._client

    async def _send(
        self, method: str, path: str, body: Any, *, stream: bool = False
    ) -> "httpx.Response":
        """Return a reply of status 200; ask again while the server is full. Raises RequestError."""
        return await patiently(lambda: self._take(method, path, body, stream=stream))

    async def _take(self, method: str, path: str, body: Any, *, stream: bool) -> "httpx.Response":
        """Return a reply of status 200. Raises RequestError."""
        import httpx

        try:
            response = await self._ask(method, path, body, stream=stream)
            if response.status_code == 200:
                return response
            await response.aread()
            await response.aclose()
        except httpx.TransportError as fault:
            raise self._gone(fault) from fault
        error = _error(response.status_code, response.text)
        if isinstance(error, QueueFull):
            error.retry_after_s = _seconds(response.headers.get("retry-after"))
        raise error

    async def _ask(self, method: str, path: str, body: Any, *, stream: bool) -> "httpx.Response":
        """Return the reply, whatever it says. Raises httpx.TransportError, BadRequest.

        A server may close a connection that has been idle just when the next request is under way
        to it, and then never sees it: such a request is sent once more.
        """
        import httpx

        client, way = self._open(), _Way()
        try:
            request = client.build_request(method, path, json=body, extensions={"trace": way.note})
        except ValueError as fault:  # a lone surrogate, or a number that is none
            raise BadRequest(f"the request cannot be written as JSON: {fault}") from fault
        try:
            return await client.send(request, stream=stream)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            if not way.is_old:
                raise
        return await client.send(client.build_request(method, path, json=body), stream=stream)

    def _gone(self, fault: Exception) -> Unavailable:
        return Unavailable(f"{self.base_url} does not answer: {str(fault) or type(fault).__name__}")


class _Way:
    """What connection a request takes."""

    def __init__(self) -> None:
        self._is_new = self._is_used = False

    async def note(self, event: str, _: Any) -> None:
        """Take an event of httpcore's."""
        self._is_new = self._is_new or ".connect_" in event
        self._is_used = self._is_used or event.endswith("send_request_headers.started")

    @property
    def is_old(self) -> bool:
        """Whether the request went to a connection that others had been sent on."""
        return self._is_used and not self._is_new


class HttpBackend:
    """What backends over HTTP share: a connection that can be closed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def aclose(self) -> None:
        """Close the connections; the next request opens new ones."""
        await self.connection.aclose()

    def close(self) -> None:
        """Close the connections, from synchronous code."""
        wait(LOOP.submit(self.aclose()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _json(response: "httpx.Response") -> Any:
    try:
        return response.json()
    except ValueError as fault:
        raise RequestFailed(f"the reply is no JSON: {response.text[:200]!r}") from fault


def _seconds(header: str | None) -> int:
    return int(header) if header is not None and header.isdecimal() else 0


def _event(data: str) -> Any:
    event = json.loads(data)
    if isinstance(event, dict) and event.get("error"):
        raise _error(None, data)
    return event


def _error(status: int | None, text: str) -> RequestError:
    """Return the error that a reply says; both dialects write {"error": {"message"}}.

    status  None: that of the type it says, which is 500 where it says none
    """
    message, kind, param, code = text[:500] or f"status {status}", None, None, None
    try:
        told = json.loads(text)["error"]
        message, kind = told["message"], told.get("type")
        param, code = told.get("param"), told.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    if status is None:
        status = _STATUSES.get(str(kind), 500)
    fault = _KINDS.get(status, BadRequest if 400 <= status < 500 else RequestFailed)
    error = fault(str(message))
    error.param, error.code, error.status = param, code, status
    return error
