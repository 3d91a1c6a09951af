"""Who goes first when memory runs short: what is known of a leaf, as an age that it is spared.

Leaves and resume points stand in lists by kind, each in order of last use. The one that goes is
the one whose last use, plus its kind's favour in ticks (matches), lies furthest back. The kind of a
leaf is the number of turns its conversation has had; that of a point is why it was left, and at a
request's end also what its leaf's is.
"""

import math
from typing import Protocol

import numpy as np

from mem_cache.handles import PointKind

PAGE_KINDS = 16
POINT_KINDS = PointKind.REQUEST_END + PAGE_KINDS

# Until a kind has as many ends as this, it is taken for the average of all kinds.
PRIOR_ENDS = 16
# Beyond these odds a few lucky or unlucky ends would say too much.
LEAST_CHANCE, MOST_CHANCE = 0.02, 0.98
# Before anybody came back, in ticks.
FIRST_WAIT = 256


class EvictionPolicy(Protocol):
    """Sets the favour of each kind from what became of requests of that kind so far."""

    def page_favour(self, returns: np.ndarray) -> np.ndarray:
        """Return ticks [PAGE_KINDS] int64.

        returns  [PAGE_KINDS] of `core.RETURNS`: requests that ended after so many turns, how many
                 of them were come back to, and the ticks that these had waited
        """
        ...

    def point_favour(self, returns: np.ndarray) -> np.ndarray:
        """Return ticks [POINT_KINDS] int64."""
        ...


class Lru:
    """Plain least-recently-used: no kind is favoured."""

    def page_favour(self, returns: np.ndarray) -> np.ndarray:
        """Return zeros."""
        return np.zeros(PAGE_KINDS, np.int64)

    def point_favour(self, returns: np.ndarray) -> np.ndarray:
        """Return zeros."""
        return np.zeros(POINT_KINDS, np.int64)


class TurnPolicy:
    """Favours what is likely to be come back to, as learned from what was.

    If requests of a kind return with chance p after a memoryless wait of mean w, the odds that one
    is still awaited after `a` ticks are p / (1 - p) * exp(-a / w). Those odds are equal for all
    kinds at equal a - w * log(p / (1 - p)): that logarithm is the favour.

    A point serves one request and then the end of that request serves the next one: a passed one,
    like one at a prompt's end, is left for edits only and goes first. A branch goes early unless
    somebody used it. Measured in tests/bench/cache.
    """

    def page_favour(self, returns: np.ndarray) -> np.ndarray:
        """Return the logarithm of each kind's odds to return, in mean waits."""
        kinds: list[tuple[int, int, int]] = returns.tolist()
        all_ended = sum(ended for ended, _, _ in kinds)
        all_returned = sum(returned for _, returned, _ in kinds)
        if not all_returned:
            return np.zeros(PAGE_KINDS, np.int64)
        prior, wait = PRIOR_ENDS * all_returned / all_ended, _mean_wait(returns)
        favour = [
            wait * _log_odds((returned + prior) / (ended + PRIOR_ENDS))
            for ended, returned, _ in kinds
        ]
        # Kind 0 has no end: what a running request left behind, or what lost all its branches.
        favour[0] = min(favour[1:])
        return np.array([int(ticks - favour[0]) for ticks in favour], np.int64)

    def point_favour(self, returns: np.ndarray) -> np.ndarray:
        """Return that of the leaf for a request's end, and what its use tells for the others."""
        wait = _mean_wait(returns)
        favour = np.zeros(POINT_KINDS, np.int64)
        favour[PointKind.PROMPT_END] = favour[PointKind.PASSED] = -4 * wait
        favour[PointKind.BRANCH] = -wait
        favour[PointKind.SHARED] = wait
        favour[PointKind.REQUEST_END :] = self.page_favour(returns)
        return favour


def _log_odds(chance: float) -> float:
    chance = min(max(chance, LEAST_CHANCE), MOST_CHANCE)
    return math.log(chance / (1 - chance))


def _mean_wait(returns: np.ndarray) -> float:
    returned = int(returns["returned"].sum())
    return int(returns["waited"].sum()) / returned if returned else FIRST_WAIT
