"""Whose part of the prefix cache a request sees."""

import hashlib
import re

from runtime.errors import BadRequest
from runtime.server.caller import caller

_SALT = re.compile(r"[A-Za-z0-9._~+/=:@-]{1,128}")


class CacheNamespaces:
    """Names the part of the prefix cache a request may see.

    One key, or none, and one salt: one namespace. Both enter as digests, so that no client text
    reaches the scheduler. Each key of several has its own, see `Caller.tenant`.
    """

    def __init__(self, api_key: str | None) -> None:
        self._tenant = b"" if api_key is None else _digest(api_key.encode())

    def of(self, cache_salt: str | None, extra_key: str | None = None) -> str:
        """Return the namespace of a request.

        Raises BadRequest for a salt that is not 1 to 128 URL-safe characters.
        """
        tenant = caller().tenant
        parts = [self._tenant if tenant is None else tenant]
        for name, salt in (("cache_salt", cache_salt), ("extra_key", extra_key)):
            if salt is None or salt == "":
                parts.append(b"")
                continue
            if not _SALT.fullmatch(salt):
                raise BadRequest(f"{name} must be 1 to 128 URL-safe characters", param=name)
            parts.append(_digest(salt.encode()))
        if not any(parts):
            return ""
        # The lengths of the parts keep two splits of one text apart.
        joined = b"".join(len(part).to_bytes(1, "big") + part for part in parts)
        return hashlib.sha256(joined).hexdigest()[:32]


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
