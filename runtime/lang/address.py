"""Where a server is, and what is sent to it as a secret: checked before anything is sent."""

import ipaddress
from urllib.parse import urlsplit, urlunsplit


def checked_url(url: str, name: str = "base_url") -> str:
    """Return a base URL without a slash at its end.

    Raises ValueError for one that is none, which calls it `name`.
    """
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_right = False
    if not is_right:
        raise ValueError(f"{name} must be http://HOST or https://HOST with a path, not {url!r}")
    return url.rstrip("/")


def shown_url(url: str) -> str:
    """Return a URL as errors show it: without a user's name, password or query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Return the scheme, host and port of a URL: which server it means."""
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname, parts.port or default


def is_local(url: str) -> bool:
    """Return whether a URL means this machine, which no proxy reaches."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def header_value(name: str, value: str) -> bytes:
    """Return a header's value as bytes: a key may be any text.

    Raises ValueError, which does not show it, for a value that no header can hold.
    """
    if value != value.strip() or any(ord(character) < 32 for character in value):
        raise ValueError(f"{name} has a blank at its end, or a control character")
    return value.encode()
