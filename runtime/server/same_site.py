"""Refuses cross-site requests, which a web page sends from its visitor's browser, before routing.

A browser lets any page send a request without a body to any address, and a page whose own name
resolves to this machine (DNS rebinding) read the reply, too. So on loopback the server answers to
its own names alone, and what changes state is not taken from pages of other sites.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.config import is_loopback
from runtime.server.errors import Forbidden, dialect_of, error_response

__all__ = ["ANY_HOST", "SameSite"]

ANY_HOST = "*"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_PAGES = frozenset({b"same-origin", b"none"})


class SameSite:
    """ASGI middleware that answers 403 to what another site's page may have sent.

    host     that is listened on; Host is checked where it is loopback, or names are given
    allowed  names, besides addresses and localhost, that Host and Origin may have; "*": any
    """

    def __init__(self, app: ASGIApp, *, host: str, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)
        self._any = ANY_HOST in self._allowed
        self._check_host = is_loopback(host) or bool(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refusal = None if self._any or scope["type"] != "http" else self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        await error_response(Forbidden(refusal), dialect_of(scope))(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        name = _name_of(f"//{host}")
        # All browsers send one; in HTTP/1.0 a client need not.
        if host and self._check_host and not self._is_own(name):
            return f"this server has no name {name[:80]!r}: add it with --allowed-hosts"
        if scope["method"] in _SAFE or self._is_own_page(headers, host):
            return None
        return "pages of other sites may not change anything here: allow one with --allowed-hosts"

    def _is_own(self, name: str) -> bool:
        if name in self._allowed or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            # No name that resolves to something else: nothing to rebind.
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _is_own_page(self, headers: dict[bytes, bytes], host: str) -> bool:
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin", b"").decode("latin-1")
        if site in _OWN_PAGES or (site is None and not origin):
            return True
        if origin and _name_of(origin) in self._allowed:
            return True
        return site is None and bool(host) and urlsplit(origin).netloc.lower() == host.lower()


def _name_of(address: str) -> str:
    """Return the host's name in an address; "" where there is none."""
    try:
        return (urlsplit(address).hostname or "").rstrip(".")
    except ValueError:
        return ""
