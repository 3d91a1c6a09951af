"""Replicas that answer by script, for the front of several servers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, MutableMapping
from typing import Any

from runtime.replicas.board import Board, RoutedRequest
from runtime.replicas.fleet import ReplicaGone
from runtime.replicas.upstream import Head, HttpRequest

Answer = Callable[[HttpRequest], AsyncGenerator[Head | bytes, None]]
Message = MutableMapping[str, Any]


class FakeFleet:
    """A fleet whose replicas are generator functions.

    sent   (replica, request) of everything that was sent, in order
    open_  generators that have begun and not ended
    """

    def __init__(self, board: Board, **answers: Answer) -> None:
        self.board = board
        self.answers = answers
        self.sent: list[tuple[str, HttpRequest]] = []
        self.open_ = 0
        board.keep(answers)

    def names(self) -> list[str]:
        """Return the replicas, in order."""
        return list(self.answers)

    async def open(
        self, request: HttpRequest, routed: RoutedRequest, avoid: Collection[str] = ()
    ) -> AsyncGenerator[Head | bytes, None]:
        """Have one replica answer."""
        name = request.replica or self.board.place(routed, self.names(), avoid=avoid)
        self.sent.append((name, request))
        self.open_ += 1
        stream = self.answers[name](request)
        try:
            async for part in stream:
                yield part
        finally:
            await stream.aclose()
            self.open_ -= 1


def replies(body: bytes, status: int = 200, kind: bytes = b"application/json") -> Answer:
    """Return an answer that is always the same."""

    async def answer(request: HttpRequest) -> AsyncGenerator[Head | bytes, None]:
        yield Head(status, [(b"Content-Type", kind)])
        yield body

    return answer


def dies(*parts: Head | bytes) -> Answer:
    """Return an answer that breaks off after `parts`."""

    async def answer(request: HttpRequest) -> AsyncGenerator[Head | bytes, None]:
        for part in parts:
            yield part
        raise ReplicaGone("killed")

    return answer


class Client:
    """Calls an ASGI application, and keeps what it sends.

    leave  awaited before the client hangs up; None: it stays
    """

    def __init__(self, app: Any, leave: Callable[[], Awaitable[object]] | None = None) -> None:
        self._app = app
        self._leave = leave
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.pieces: list[bytes] = []
        self.ended = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Collection[tuple[bytes, bytes]] = (),
    ) -> "Client":
        """Send one request, and return when the application has."""

        plain, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": plain,
            "raw_path": plain.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"here"), *headers],
            "client": ("127.0.0.1", 1),
        }
        halves = [body[: len(body) // 2], body[len(body) // 2 :]]

        async def receive() -> Message:
            if halves:
                part = halves.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(halves)}
            if self._leave is None:
                await asyncio.Event().wait()
            else:
                await self._leave()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                assert not self.status
                self.status, self.headers = message["status"], dict(message["headers"])
            else:
                assert not self.ended
                self.pieces.append(message.get("body", b""))
                self.ended = not message.get("more_body", False)

        await self._app(scope, receive, send)
        return self
