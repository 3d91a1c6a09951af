"""Who sent the request that is being answered.

Plans of all dialects need it and none of them sees the connection: it is kept for the task that
answers, and the tasks which that one starts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from runtime.share import Share

__all__ = ["Caller", "answering", "caller"]

NOBODY = Share()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and how long it wants to wait.

    share      its share of the rows
    tenant     what its cache namespaces are made of; None: what those of all callers are
    timeout_s  that its requests may take; None: the server's own limit
    """

    share: Share = NOBODY
    tenant: bytes | None = None
    timeout_s: float | None = None


_caller: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - frozen


def caller() -> Caller:
    """Return who sent the request that is being answered; nobody's outside of a server."""
    return _caller.get()


@contextmanager
def answering(one: Caller) -> Iterator[None]:
    """Have `caller` return this one inside."""
    token = _caller.set(one)
    try:
        yield
    finally:
        _caller.reset(token)
