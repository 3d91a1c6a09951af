"""Who may call.

The check is plain ASGI and comes before routing: every path needs the key but an exact few.
"""

import hashlib
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.errors import Unauthorized
from runtime.server.errors import dialect_of, error_response

# The page at / holds no data: what it shows it fetches with the key.
OPEN_PATHS = frozenset({"/", "/health", "/ping", "/ready", "/metrics"})


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class RequireKey:
    """ASGI middleware that answers 401 to a request without the key.

    The key comes as `Authorization: Bearer KEY` or `x-api-key: KEY`. Digests are compared, so
    that time tells nothing and a non-ASCII header is no fault.
    """

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self._app = app
        self._wanted = _digest(api_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        error = Unauthorized("the API key is missing or wrong", code="invalid_api_key")
        await error_response(error, dialect_of(scope))(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        offered = [_key_in(name, value) for name, value in scope["headers"]]
        matches = [hmac.compare_digest(_digest(key), self._wanted) for key in offered if key]
        return any(matches)


def _key_in(name: bytes, value: bytes) -> bytes | None:
    if name == b"x-api-key":
        return value.strip()
    if name == b"authorization":
        scheme, _, key = value.strip().partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else None
    return None
