"""Who may call.

The check is plain ASGI and comes before routing: every path needs a key but an exact few.
"""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.api_keys import ApiKey
from runtime.errors import RequestError, Unauthorized
from runtime.server.errors import Forbidden, dialect_of, error_response
from runtime.share import Share

__all__ = ["ADMIN_PATHS", "OPEN_PATHS", "RequireKey"]

# The page at / holds no data: what it shows it fetches with the key.
OPEN_PATHS = frozenset({"/", "/health", "/ping", "/ready", "/metrics"})
# What concerns the requests of all keys needs an admin's where there are several.
ADMIN_PATHS = frozenset(
    {"/abort_request", "/cache", "/flush_cache", "/start_profile", "/stop_profile"}
)
# Of all keys that are to share one.
_SHARED_TENANT = b"shared"


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class RequireKey:
    """ASGI middleware that answers 401 to a request without a key.

    The key comes as `Authorization: Bearer KEY` or `x-api-key: KEY`. Digests are compared, with all
    keys, so that time tells nothing and a non-ASCII header is no fault.

    api_key  one that may do everything
    keys     of a file; each has its own share and tenant, which `KnowCaller` reads from the scope
    """

    def __init__(
        self, app: ASGIApp, *, api_key: str | None = None, keys: Sequence[ApiKey] = ()
    ) -> None:
        self._app = app
        self._wanted: list[tuple[bytes, ApiKey | None]] = []
        if api_key is not None:
            self._wanted.append((_digest(api_key.encode()), None))
        self._wanted += [(_digest(key.key.encode()), key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        refusal = self._admit(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await error_response(refusal, dialect_of(scope))(scope, receive, send)

    def _admit(self, scope: Scope) -> RequestError | None:
        """Note in the scope whose key it has; return what to refuse the request with, or None."""
        offered = [
            _digest(key) for name, value in scope["headers"] if (key := _key_in(name, value))
        ]
        found = [
            key
            for digest, key in self._wanted
            if sum(hmac.compare_digest(digest, one) for one in offered)
        ]
        if not found:
            return Unauthorized("the API key is missing or wrong", code="invalid_api_key")
        if (key := found[0]) is None:
            scope["umbra.key"] = (Share(), None)
            return None
        if scope["path"] in ADMIN_PATHS and not key.admin:
            return Forbidden("this needs the key of an admin")
        tenant = _SHARED_TENANT if key.shared else _digest(key.name.encode())
        scope["umbra.key"] = (key.share, tenant)
        return None


def _key_in(name: bytes, value: bytes) -> bytes | None:
    if name == b"x-api-key":
        return value.strip()
    if name == b"authorization":
        scheme, _, key = value.strip().partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else None
    return None
