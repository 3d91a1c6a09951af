"""How fast waiting requests get rows: what an estimate of the waiting time is made of."""

from collections import deque

__all__ = ["StartRate"]

# Starts before this are no news, but for the last one.
WINDOW_S = 10.0
MOST_STARTS = 4096
# Beyond this nobody can tell.
LONGEST_S = 600.0


class StartRate:
    """The times at which requests got rows, of all replicas. One thread writes, any reads."""

    def __init__(self) -> None:
        self._starts = deque[float](maxlen=MOST_STARTS)

    def note(self, now_s: float, requests: int) -> None:
        """Note that so many requests have got rows."""
        starts = self._starts
        starts.extend([now_s] * requests)
        while len(starts) > 1 and now_s - starts[0] > WINDOW_S:
            starts.popleft()

    def seconds_for(self, requests: int, now_s: float) -> float:
        """Return how long it takes until so many more have got rows, at the rate of late.

        0 where there are none, or where nothing has started yet. A rate falls while nothing starts.
        """
        count = len(self._starts)
        if not requests or not count:
            return 0.0
        elapsed_s = max(now_s - self._starts[0], 0.0)
        return min(requests * elapsed_s / count, LONGEST_S)
