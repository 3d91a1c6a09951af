"""The file of API keys: their names, and the share of the server that each has.

One key a line (empty lines and lines that begin with # are left out), or JSON:

    [{"name": "alice", "key": "...", "weight": 2, "max_running": 8, "max_queued": 100},
     {"name": "ops", "key": "...", "admin": true}]

No error here repeats a key.
"""

import re
from pathlib import Path

import msgspec

from runtime.config import is_sendable
from runtime.errors import ConfigError
from runtime.share import Share

__all__ = ["ApiKey", "read_api_keys"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# What tokens are divided by: sums of them stay exact enough.
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100
_FLAG = "--api-key-file"


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key.

    name         in metrics; 1 to 64 letters, digits, dots, dashes and underscores
    weight       of its share of the rows, between `LEAST_WEIGHT` and `MOST_WEIGHT`
    max_running  its requests that may run at once; None: no limit
    max_queued   its requests that may wait for a row; None: no limit
    shared       it uses the cache that all shared keys use, instead of one of its own
    admin        it may use the endpoints of `runtime.server.auth.ADMIN_PATHS`
    """

    name: str
    key: str
    weight: float = 1.0
    max_running: int | None = None
    max_queued: int | None = None
    shared: bool = False
    admin: bool = False

    def __repr__(self) -> str:
        """Return the name alone, so that no log line has the key."""
        return f"ApiKey({self.name!r})"

    @property
    def share(self) -> Share:
        """Return the share that requests with this key belong to."""
        return Share(self.name, self.weight, self.max_running, self.max_queued)


def read_api_keys(path: str) -> list[ApiKey]:
    """Return the keys in a file, one at least. Raises ConfigError."""
    try:
        text = Path(path).read_text("utf-8").removeprefix("\ufeff")
    except OSError as fault:
        raise ConfigError(f"{_FLAG} {path}: {fault.strerror}") from fault
    except UnicodeDecodeError as fault:
        raise ConfigError(f"{_FLAG} {path}: the file is no UTF-8") from fault
    try:
        keys = _from_json(text) if text.lstrip().startswith(("[", "{")) else _from_lines(text)
        _check(keys)
    except ValueError as fault:
        # Without its cause: that may hold a part of the file.
        raise ConfigError(f"{_FLAG} {path}: {fault}") from None
    return keys


def _from_json(text: str) -> list[ApiKey]:
    return msgspec.json.decode(text, type=list[ApiKey])


def _from_lines(text: str) -> list[ApiKey]:
    lines = [line.strip() for line in text.splitlines()]
    return [
        ApiKey(f"line-{number}", key)
        for number, key in enumerate(lines, start=1)
        if key and not key.startswith("#")
    ]


def _check(keys: list[ApiKey]) -> None:
    """Raise ValueError for keys that cannot be used."""
    if not keys:
        raise ValueError("the file has no key")
    names, secrets = set[str](), set[str]()
    for number, key in enumerate(keys, start=1):
        if not _NAME.fullmatch(key.name):
            raise ValueError(f"the name of key {number} is not 1 to 64 of A-Z a-z 0-9 . _ -")
        if not is_sendable(key.key):
            raise ValueError(f"key {key.name} is empty or has characters that no client can send")
        if not LEAST_WEIGHT <= key.weight <= MOST_WEIGHT:
            raise ValueError(
                f"the weight of {key.name} must be between {LEAST_WEIGHT} and {MOST_WEIGHT}"
            )
        if key.max_running is not None and key.max_running < 1:
            raise ValueError(f"max_running of {key.name} must be at least 1")
        if (key.max_queued or 0) < 0:
            raise ValueError(f"max_queued of {key.name} must not be negative")
        if key.name in names:
            raise ValueError(f"the name {key.name} is there twice")
        if key.key in secrets:
            raise ValueError(f"the key of {key.name} is there twice")
        names.add(key.name)
        secrets.add(key.key)
