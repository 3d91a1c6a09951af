"""The rate at which waiting requests get rows, for estimates of the waiting time."""

from collections import deque

__all__ = ["StartRate"]

# Only starts of the last seconds count, and at least one.
WINDOW_S = 10.0
MOST_STARTS = 4096
# Longest estimate.
LONGEST_S = 600.0


class StartRate:
    """The times at which requests of all replicas got rows. One thread writes, any may read."""

    def __init__(self) -> None:
        self._starts = deque[float](maxlen=MOST_STARTS)

    def note(self, now_s: float, requests: int) -> None:
        """Note that so many requests have got rows."""
        starts = self._starts
        starts.extend([now_s] * requests)
        while len(starts) > 1 and now_s - starts[0] > WINDOW_S:
            starts.popleft()

    def seconds_for(self, requests: int, now_s: float) -> float:
        """Return how long it takes until so many more have rows, at the recent rate.

        0 where there are none, or where nothing has started yet. A rate falls while nothing starts.
        """
        count = len(self._starts)
        if not requests or not count:
            return 0.0
        elapsed_s = max(now_s - self._starts[0], 0.0)
        return min(requests * elapsed_s / count, LONGEST_S)
