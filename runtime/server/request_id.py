"""Echo of X-Request-Id, so that a client's log line finds its reply."""

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = b"x-request-id"
_PLAIN = re.compile(rb"[!-~]{1,128}")


class EchoRequestId:
    """ASGI middleware that repeats a plain X-Request-Id in the reply."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; add the header where it came with one."""
        headers: list[tuple[bytes, bytes]] = scope.get("headers", [])
        names = [value for name, value in headers if name == _HEADER and _PLAIN.fullmatch(value)]
        if scope["type"] != "http" or not names:
            await self._app(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (_HEADER, names[0])]
            await send(message)

        await self._app(scope, receive, send_with_id)
