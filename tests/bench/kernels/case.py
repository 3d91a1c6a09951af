"""One measurement of an op: its inputs, the bytes it must move, and what it is held to."""

import math
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

    def slowest_us(self, *, copy_us: float, floor_us: float) -> float:
        """Return the longest time within the limit, infinity where nothing counts.

        copy_us   time of a plain copy of the same bytes, inside a graph
        floor_us  those bytes over the bandwidth of a large copy
        """
        bounds = [math.inf]
        if self.copies is not None:
            bounds.append(self.copies * copy_us)
        if self.share is not None:
            bounds.append(floor_us / self.share)
        if self.time_us is not None:
            bounds.append(self.time_us)
        return min(bounds)


FEW, MANY = 256, 16_384
# Routing of many tokens misses its share, and so does a plain copy of its 5 to 26 MB: it takes 3.2
# to 8.4 us, 0.39 to 0.74 of a large one's bandwidth; 0.9 us of a launch move nothing (one H200).
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
