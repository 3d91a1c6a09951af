"""One HTTP server: requests that wait when it is full, streams, and its errors as ours."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from runtime.errors import BadRequest, RequestFailed, Unavailable
from runtime.lang.address import checked_url, header_value, is_local, shown_url
from runtime.lang.backend import DirectCalls
from runtime.lang.bodies import wait
from runtime.lang.extra import require
from runtime.lang.http_errors import error_of, refusal
from runtime.lang.lines import lines
from runtime.lang.loop import LOOP
from runtime.lang.patience import patiently

if TYPE_CHECKING:
    import httpx

# More requests than that wait on this side: a server's queue and its open files are finite.
MAX_REQUESTS = 128
CONNECT_S = 10.0

# Shorter keys are placeholders, such as "EMPTY", and may be part of any text.
MIN_SECRET_CHARS = 8


class Connection:
    """A pool of connections to one server; its coroutines belong to one event loop.

    Cancelling a request closes its connection, by which the server knows to end it. Redirects are
    not followed, and the key is not part of any error. Proxies of the environment are used, except
    for this machine.

    headers    further ones that every request has
    transport  what carries requests, for tests and Unix sockets; None: TCP
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        verify: bool = True,
        headers: Mapping[str, str] | None = None,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """Keep where the server is. Raises ValueError for a URL or a key that cannot be one."""
        require("httpx")
        self.base_url = checked_url(base_url)
        self._secret = api_key or ""
        self._headers = {n.encode(): header_value(n, v) for n, v in (headers or {}).items()}
        if api_key:
            self._headers[b"Authorization"] = b"Bearer " + header_value("api_key", api_key)
        self._verify = verify
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(MAX_REQUESTS)

    async def post(self, path: str, body: Any) -> Any:
        """Return the JSON reply to a JSON body. Raises RequestError."""
        async with self._slots:
            return self._json(await self._send("POST", path, body))

    async def get(self, path: str) -> Any:
        """Return the JSON at `path`. Raises RequestError."""
        return self._json(await self._send("GET", path, None))

    async def status(self, path: str) -> int:
        """POST without a body; return the status: 200, or 400. Raises RequestError for others."""
        import httpx

        try:
            response = await self._open().post(path)
        except httpx.TransportError as fault:
            raise self._gone(fault) from None
        if response.status_code not in (200, 400):
            raise refusal(response, self._hidden(response.text))
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
                                yield self._event(line.removeprefix("data:"))
                finally:
                    await response.aclose()
            except httpx.TransportError as fault:
                raise self._gone(fault) from None
        raise RequestFailed("the stream broke off")

    async def aclose(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open(self) -> "httpx.AsyncClient":
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(
                base_url=self.base_url,
                headers=self._headers,
                verify=self._verify,
                transport=self._transport,
                # A reply takes as long as it takes; that a server is not there shows at once.
                timeout=httpx.Timeout(None, connect=CONNECT_S),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=MAX_REQUESTS),
                trust_env=not is_local(self.base_url),
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
            raise self._gone(fault) from None
        raise refusal(response, self._hidden(response.text))

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
        why = self._hidden(str(fault)) or type(fault).__name__
        return Unavailable(f"{shown_url(self.base_url)} does not answer: {why}")

    def _json(self, response: "httpx.Response") -> Any:
        try:
            return response.json()
        except ValueError:
            text = self._hidden(response.text)[:200]
            raise RequestFailed(f"the reply is no JSON: {text!r}") from None

    def _event(self, data: str) -> Any:
        try:
            event = json.loads(data)
        except ValueError:
            text = self._hidden(data)[:200]
            raise RequestFailed(f"an event of the stream is no JSON: {text!r}") from None
        if isinstance(event, dict) and event.get("error"):
            raise error_of(None, self._hidden(data))
        return event

    def _hidden(self, text: str) -> str:
        """Return a text in which the key is not shown, if a server repeats it."""
        is_secret = len(self._secret) >= MIN_SECRET_CHARS
        return text.replace(self._secret, "***") if is_secret else text


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


class HttpBackend(DirectCalls):
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
