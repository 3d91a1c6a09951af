"""How long something takes each time: counted in buckets where it happens, sent as one value."""

from bisect import bisect_left

from runtime.messages import Histogram

# 1, 2 and 5 microseconds, and so on up to 500 s.
BOUNDS_S = tuple(float(f"{digit}e{exponent}") for exponent in range(-6, 3) for digit in (1, 2, 5))


class Durations:
    """Counts of durations by bucket, written in one thread and read in any.

    bounds_s  the greatest duration of each bucket but the last, ascending
    """

    def __init__(self, bounds_s: tuple[float, ...] = BOUNDS_S) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count `count` durations of `seconds` each."""
        self._counts[bisect_left(self._bounds_s, seconds)] += count
        self._sum_s += seconds * count

    def told(self) -> Histogram:
        """Return what was counted so far."""
        return Histogram(list(self._bounds_s), list(self._counts), self._sum_s)
