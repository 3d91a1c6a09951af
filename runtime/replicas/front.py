"""The one address of several servers: routes requests and relays replies.

    a request with a prompt     to the replica with its prefix (`board`)
    a continued response        to the replica that keeps it
    /replicas/NAME/...          to that replica
    what concerns all           to all (`overview`)
    anything else               to the replica with the least to do

A request is aborted when its client disconnects. If a replica dies before its reply has begun, the
request is sent to another one.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runtime.errors import RequestError, Unavailable
from runtime.replicas.board import Board, RoutedRequest
from runtime.replicas.fleet import Fleet, ReplicaGone, fetch
from runtime.replicas.overview import EVERYWHERE, Overview
from runtime.replicas.prompt_keys import PromptKeys
from runtime.replicas.upstream import Head, HttpRequest
from runtime.server.body import MAX_BODY_BYTES
from runtime.server.errors import BodyTooLarge, dialect_of, error_event, error_response

__all__ = ["Front", "Keys"]

logger = logging.getLogger("umbra.replicas")

# Most attempts of a request whose replicas die before they reply.
_ATTEMPTS = 3
_RETRY_AFTER_S = 5
# Headers that the front has checked, and that do not apply to a replica.
_JUDGED_HERE = frozenset({b"host", b"origin", b"content-length"})
# Headers that Ray's proxy writes into each reply.
_WRITTEN_BEFORE = frozenset({b"date", b"server", b"x-request-id"})
# Paths that are answered at once even without a replica.
_PROBES = frozenset({"/health", "/ping", "/ready", "/health_generate"})
_RESPONSE = re.compile(r"/v1/responses/[^/]+")
_ONE = re.compile(r"/replicas/([^/]+)(/.*)")


class Keys(Protocol):
    """Finds the lookup keys of a request's prompt."""

    async def of(self, request: HttpRequest) -> PromptKeys | None:
        """Return the keys, None for a request without a prompt or one to be refused."""
        ...


class _Continued(msgspec.Struct):
    previous_response_id: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None


class Front:
    """An ASGI application in front of a fleet."""

    def __init__(self, fleet: Fleet, board: Board, keys: Keys) -> None:
        self._fleet = fleet
        self._board = board
        self._keys = keys
        self._overview = Overview(fleet, board)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            request = await _read(scope, receive)
        except RequestError as error:
            await error_response(error, dialect_of(scope))(scope, receive, send)
            return
        answering = asyncio.ensure_future(self._answer(request, scope, receive, send))
        leaving = asyncio.ensure_future(_until_left(receive))
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _answer(
        self, request: HttpRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        path = request.path.partition("?")[0]
        own: dict[str, Callable[[], Awaitable[None]]] = {
            "/": lambda: self._overview.page()(scope, receive, send),
            "/replicas": lambda: self._overview.describe()(scope, receive, send),
        }
        if path in _PROBES and not self._fleet.names():
            await Response(status_code=503)(scope, receive, send)
        elif path in own and request.method in ("GET", "HEAD"):
            await own[path]()
        elif path in EVERYWHERE:
            await (await self._overview.everywhere(request))(scope, receive, send)
        elif found := _ONE.fullmatch(request.path):
            await self._relay(replace(request, path=found[2], replica=found[1]), scope, send)
        elif _RESPONSE.fullmatch(path):
            owner = await self._owner(replace(request, method="GET", body=b""))
            await self._relay(replace(request, replica=owner), scope, send)
        else:
            if path == "/v1/responses" and b"previous_response_id" in request.body:
                request = replace(request, replica=await self._owner_of_last(request))
            await self._relay(request, scope, send)

    # --- responses that a replica keeps

    async def _owner_of_last(self, request: HttpRequest) -> str | None:
        """Return the replica that keeps the response which a request continues, if one does."""
        try:
            body = msgspec.json.decode(request.body, type=_Continued)
        except msgspec.DecodeError:
            return None
        if not body.previous_response_id or "/" in body.previous_response_id:
            return None
        salts = {"cache_salt": body.cache_salt, "extra_key": body.extra_key}
        query = urlencode({name: salt for name, salt in salts.items() if salt})
        path = f"/v1/responses/{body.previous_response_id}?{query}".rstrip("?")
        if not path.isascii():
            return None
        return await self._owner(HttpRequest("GET", path, request.headers, b""))

    async def _owner(self, request: HttpRequest) -> str | None:
        for name in list(self._fleet.names()):
            if (await fetch(self._fleet, replace(request, replica=name))).status == 200:
                return name
        return None

    # --- one replica's reply

    async def _relay(self, request: HttpRequest, scope: Scope, send: Send) -> None:
        """Send a request to one replica, and its reply to the client."""
        if request.replica is not None and request.replica not in self._fleet.names():
            gone = Unavailable(f"there is no replica {request.replica[:80]!r}")
            await error_response(gone, dialect_of(scope))(scope, _no_more, send)
            return
        routed = RoutedRequest(await self._keys.of(request))
        avoid: list[str] = []
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                last = attempt == _ATTEMPTS or request.replica is not None
                if await self._attempt(request, routed, avoid, scope, send, last=last):
                    return
        finally:
            self._board.done(routed)

    async def _attempt(
        self,
        request: HttpRequest,
        routed: RoutedRequest,
        avoid: list[str],
        scope: Scope,
        send: Send,
        *,
        last: bool,
    ) -> bool:
        """Relay one reply; False: nothing was sent to the client, and it may be tried elsewhere.

        avoid  gets the name of a replica that failed
        """
        stream = self._fleet.open(request, routed, avoid)
        head: Head | None = None
        try:
            async for part in stream:
                if isinstance(part, Head):
                    if part.status == 503 and not last and self._has_other(routed, avoid):
                        avoid.append(routed.replica or "")
                        return False
                    head = part
                    await send(_start(part))
                else:
                    self._board.answered(routed)
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except ReplicaGone as gone:
            logger.warning("replica %s failed: %s", routed.replica, gone)
            if head is None and not last:
                avoid.append(routed.replica or "")
                return False
            await _say_gone(head, scope, send)
        finally:
            await stream.aclose()
        return True

    def _has_other(self, routed: RoutedRequest, avoid: Sequence[str]) -> bool:
        return bool(set(self._fleet.names()) - {routed.replica, *avoid})


def _start(head: Head) -> dict[str, object]:
    named = ((name.lower(), value) for name, value in head.headers)
    headers = [(name, value) for name, value in named if name not in _WRITTEN_BEFORE]
    return {"type": "http.response.start", "status": head.status, "headers": headers}


async def _say_gone(head: Head | None, scope: Scope, send: Send) -> None:
    """End a reply whose replica is gone: with 503, an event, or a broken connection."""
    error = Unavailable("the replica that computed this is gone", retry_after_s=_RETRY_AFTER_S)
    dialect = dialect_of(scope)
    if head is None:
        await error_response(error, dialect)(scope, _no_more, send)
    elif head.value(b"content-type").startswith(b"text/event-stream"):
        event = b"\n\n" + error_event(error, dialect)
        await send({"type": "http.response.body", "body": event})
    else:
        raise ConnectionError("the reply broke off")  # a whole reply must not seem to end here


async def _read(scope: Scope, receive: Receive) -> HttpRequest:
    """Return the request, read whole. Raises BodyTooLarge."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Unavailable("the client has hung up")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body has more than {MAX_BODY_BYTES} bytes")
        if not message.get("more_body", False):
            break
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    path = path.partition(b"?")[0]
    if query := scope.get("query_string", b""):
        path += b"?" + query
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name not in _JUDGED_HERE and not name.startswith(b"sec-fetch-")
    ]
    return HttpRequest(scope["method"], path.decode("latin-1"), headers, bytes(body))


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _no_more() -> dict[str, object]:
    return {"type": "http.disconnect"}
