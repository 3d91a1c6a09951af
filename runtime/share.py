"""Shares of the rows, for which requests compete: one for each API key or client address."""

import msgspec

__all__ = ["ADDRESS_MARK", "Share", "ShareState"]

# Begins the names of shares that are addresses, and no name of a key.
ADDRESS_MARK = "@"


class Share(msgspec.Struct, frozen=True, omit_defaults=True):
    """The share of the server that a request belongs to.

    name         of an API key, or an address behind `ADDRESS_MARK`; "": all other requests
    weight       a share of weight 2 gets twice the tokens of one of weight 1; above 0
    max_running  its requests that may hold a row at once; None: no limit
    max_queued   its requests that may wait for a row; None: no limit
    """

    name: str = ""
    weight: float = 1.0
    max_running: int | None = None
    max_queued: int | None = None


class ShareState(msgspec.Struct, frozen=True):
    """Counts of the requests of a share.

    waiting  those that wait for a row now
    running  those that hold one
    started  those that have got their first one, since start
    wait_s   seconds that these waited for it, all together
    """

    waiting: int = 0
    running: int = 0
    started: int = 0
    wait_s: float = 0.0
