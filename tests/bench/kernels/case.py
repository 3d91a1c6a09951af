"""One measurement of an op: its inputs, the bytes it must move, and what it is held to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["FEW", "LIMITS", "MANY", "Case", "Limit"]


@dataclass(frozen=True, slots=True)
class Limit:
    """The slowest that will do; a field that is None does not count.

    copies    times a plain copy of the same bytes, both inside a graph
    share     of the bandwidth of a large copy, at least
    time_us   microseconds
    """

    copies: float | None = None
    share: float | None = None
    time_us: float | None = None

    def is_kept(self, time_us: float, *, copy_us: float, floor_us: float) -> bool:
        """Say whether a time is within the limit."""
        return (
            (self.copies is None or time_us <= self.copies * copy_us)
            and (self.share is None or floor_us >= self.share * time_us)
            and (self.time_us is None or time_us <= self.time_us)
        )


FEW, MANY = 256, 16_384
# What moves few bytes cannot reach the share of many tokens: of 20 MB a plain copy has itself
# three quarters of a large one's bandwidth.
LIMITS = {FEW: Limit(copies=1.5), MANY: Limit(share=0.8)}


@dataclass(frozen=True, slots=True)
class Case:
    """An op at one shape.

    moved_bytes  every input read once and every output written once
    prepare      makes fresh inputs on the default device and returns the call that uses them
    """

    op: str
    shape: str
    moved_bytes: int
    prepare: Callable[[], Callable[[], Any]]
    limit: Limit
