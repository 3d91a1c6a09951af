"""Finds the sender of a request: by its API key, or by its address."""

import ipaddress

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.errors import BadRequest
from runtime.server.caller import Caller, answering
from runtime.server.errors import dialect_of, error_response
from runtime.share import ADDRESS_MARK, Share

__all__ = ["KnowCaller"]

_TIMEOUT = b"x-request-timeout"
LONGEST_TIMEOUT_S = 86_400.0
# One client may use all IPv6 addresses of a network with a prefix of so many bits.
_V6_BITS = 64


class KnowCaller:
    """ASGI middleware that sets the caller: the API key of a request, else its address.

    A key's share and tenant come in the scope's state, from `RequireKey`. Answers 400 to an
    X-Request-Timeout that is not a number of seconds.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            timeout_s = _timeout_s(scope)
        except BadRequest as refusal:
            await error_response(refusal, dialect_of(scope))(scope, receive, send)
            return
        share, tenant = scope.get("umbra.key") or (_address_share(scope), None)
        with answering(Caller(share, tenant, timeout_s)):
            await self._app(scope, receive, send)


def _timeout_s(scope: Scope) -> float | None:
    """Return the client's own time limit in seconds. Raises BadRequest."""
    values = [value for name, value in scope["headers"] if name == _TIMEOUT]
    if not values:
        return None
    try:
        seconds = float(values[0])
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST_TIMEOUT_S:  # NaN is neither
        most = f"{LONGEST_TIMEOUT_S:g}"
        raise BadRequest(f"X-Request-Timeout must be seconds above 0, {most} at most")
    return seconds


def _address_share(scope: Scope) -> Share:
    """Return the share of an address; of IPv6 that of its network."""
    host, _ = scope.get("client") or ("", 0)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return Share(ADDRESS_MARK)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or ipaddress.ip_network(
            (int(address), _V6_BITS), strict=False
        )
    return Share(f"{ADDRESS_MARK}{address}")
