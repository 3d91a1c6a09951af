"""The sender of the request that is being answered.

Plans of all dialects need it, and none of them sees the connection. So it is a context variable of
the task that answers, and of the tasks started by it.
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
    """A sender of requests, and how long its requests may take.

    share      its share of the rows
    tenant     part of its cache namespaces; None: it shares those of all such callers
    timeout_s  longest time of its requests; None: the server's own limit
    """

    share: Share = NOBODY
    tenant: bytes | None = None
    timeout_s: float | None = None


_caller: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - frozen


def caller() -> Caller:
    """Return the sender of the request that is being answered; a default outside of a server."""
    return _caller.get()


@contextmanager
def answering(one: Caller) -> Iterator[None]:
    """Have `caller` return this one inside."""
    token = _caller.set(one)
    try:
        yield
    finally:
        _caller.reset(token)
