"""How long something takes each time: counted in buckets where it happens, sent as one value."""

from bisect import bisect_left

from runtime.messages import Histogram

# 1, 2 and 5 microseconds, and so on up to 500 s.
BOUNDS_S = tuple(float(f"{digit}e{exponent}") for exponent in range(-6, 3) for digit in (1, 2, 5))


class Durations:
    """Counts of durations by bucket, written in one thread and read in any."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one more."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def told(self) -> Histogram:
        """Return what was counted so far."""
        return Histogram(list(BOUNDS_S), list(self._counts), self._sum_s)
