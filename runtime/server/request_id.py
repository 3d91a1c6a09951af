"""Echo of X-Request-Id, so that a client's log line finds its reply."""

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["EchoRequestId", "plain_request_id"]

_HEADER = b"x-request-id"
_PLAIN = re.compile(rb"[!-~]{1,128}")


def plain_request_id(scope: Scope) -> bytes | None:
    """Return the X-Request-Id of a request, None where there is none, or none that is plain."""
    values = [value for name, value in scope.get("headers", []) if name == _HEADER]
    return next((value for value in values if _PLAIN.fullmatch(value)), None)


class EchoRequestId:
    """ASGI middleware that repeats a plain X-Request-Id in the reply."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; add the header where it came with one."""
        name = plain_request_id(scope)
        if scope["type"] != "http" or name is None:
            await self._app(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (_HEADER, name)]
            await send(message)

        await self._app(scope, receive, send_with_id)
