"""Who may call, and whose cache they see.

The check is plain ASGI and comes before routing: every path needs the key but an exact few.
"""

import hashlib
import hmac
import re

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.errors import BadRequest, Unauthorized
from runtime.server.errors import error_response, is_openai

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})

_SALT = re.compile(r"[A-Za-z0-9._~+/=:@-]{1,128}")


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
        await error_response(error, openai=is_openai(scope["path"]))(scope, receive, send)

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


class CacheNamespaces:
    """Names the part of the prefix cache a request may see.

    One key, or none, and one salt: one namespace. Both enter as digests, so that no client text
    reaches the scheduler.
    """

    def __init__(self, api_key: str | None) -> None:
        self._tenant = b"" if api_key is None else _digest(api_key.encode())

    def of(self, cache_salt: str | None, extra_key: str | None = None) -> str:
        """Return the namespace of a request.

        Raises BadRequest for a salt that is not 1 to 128 URL-safe characters.
        """
        parts = [self._tenant]
        for name, salt in (("cache_salt", cache_salt), ("extra_key", extra_key)):
            if salt is None or salt == "":
                parts.append(b"")
                continue
            if not _SALT.fullmatch(salt):
                raise BadRequest(f"{name} must be 1 to 128 URL-safe characters", param=name)
            parts.append(_digest(salt.encode()))
        if not any(parts):
            return ""
        # Each part is empty or 32 bytes: their lengths keep two splits of one text apart.
        joined = b"".join(len(part).to_bytes(1, "big") + part for part in parts)
        return hashlib.sha256(joined).hexdigest()[:32]
