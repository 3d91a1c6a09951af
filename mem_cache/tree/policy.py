"""Who goes first when memory runs short: what is known of a leaf or point, as extra age.

Leaves and resume points stand in lists by kind, each in order of last use. The one that is evicted
is the one with the smallest last use plus favour of its kind, both in ticks (requests). README.md
explains what the kinds are, how the favours follow from what was observed, and what was tried.
"""

import math
from typing import Protocol

import numpy as np

from mem_cache.tree.core.binding import LENGTH_CLASSES, SAVE_CLASSES, TURN_CLASSES
from mem_cache.tree.handles import PointKind

# Kind 0 is a page where no request ended; the others are numbered by turns, then by length.
PAGE_KINDS = 1 + TURN_CLASSES * LENGTH_CLASSES
POINT_KINDS = PointKind.REQUEST_END + PAGE_KINDS

# Until as many requests of a kind have ended, its chance is taken for that of similar ones: of all
# requests with as many turns, and these for that of all requests.
PRIOR_ENDS, PRIOR_LENGTH_ENDS = 16, 64
# Odds beyond these follow from too few requests.
LEAST_CHANCE, MOST_CHANCE = 0.02, 0.98
# Before any request continued another one, in ticks.
FIRST_WAIT = 256

# Logarithms of the odds that a point is used, relative to the odds of REQUEST_END.
_FIXED_LOG_ODDS = {
    PointKind.PROMPT_END: -5.0,
    PointKind.PASSED: -5.0,
    PointKind.BRANCH: -2.0,
    PointKind.SHARED: 0.0,
    PointKind.WAYPOINT: -6.0,
}
# Those of BOUNDARY before it is observed, and within which limits it is learned. A use a mean wait
# counts one less than its logarithm: the odds of REQUEST_END are those at its youngest age.
_BOUNDARY_LOG_ODDS, _BOUNDARY_OFFSET, _BOUNDARY_PRIOR = -1.0, -1.0, 8
_LEAST_BOUNDARY, _MOST_BOUNDARY = -6.0, 3.0


class EvictionPolicy(Protocol):
    """Sets the favour of each kind from what became of requests and points of that kind so far."""

    def page_favour(self, returns: np.ndarray) -> np.ndarray:
        """Return ticks [PAGE_KINDS] int64.

        returns  [PAGE_KINDS] of `core.RETURNS`: requests of that kind that ended, how many of them
                 another one continued, and the ticks that these had waited
        """
        ...

    def point_favour(self, returns: np.ndarray, uses: np.ndarray) -> np.ndarray:
        """Return ticks [POINT_KINDS, SAVE_CLASSES] int64.

        uses  [POINT_KINDS] of `core.USES`: points of that kind, their summed ages, their uses
        """
        ...


class Lru:
    """Plain least-recently-used: no kind is favoured."""

    def page_favour(self, returns: np.ndarray) -> np.ndarray:
        """Return zeros."""
        return np.zeros(PAGE_KINDS, np.int64)

    def point_favour(self, returns: np.ndarray, uses: np.ndarray) -> np.ndarray:
        """Return zeros."""
        return np.zeros((POINT_KINDS, SAVE_CLASSES), np.int64)


class TurnPolicy:
    """Keeps longest what is likeliest to be reused, as learned from what was reused.

    If requests of a kind are continued with chance p after a memoryless wait of mean w, the odds
    that one is still to be continued after `a` ticks are p / (1 - p) * exp(-a / w). Those odds are
    equal for all kinds at equal a - w * log(p / (1 - p)): w times that logarithm is the favour. A
    resume point also weighs what it saves, so that the logarithm of that is added.
    """

    def page_favour(self, returns: np.ndarray) -> np.ndarray:
        """Return the logarithm of each kind's odds to be continued, in mean waits."""
        if not returns["returned"].sum():
            return np.zeros(PAGE_KINDS, np.int64)
        return (_mean_wait(returns) * _log_odds(_chances(returns))).astype(np.int64)

    def point_favour(self, returns: np.ndarray, uses: np.ndarray) -> np.ndarray:
        """Return the logarithm of odds times tokens saved, in mean waits."""
        wait = _mean_wait(returns)
        favour = np.zeros(POINT_KINDS)
        for kind, log_odds in _FIXED_LOG_ODDS.items():
            favour[kind] = wait * log_odds
        favour[PointKind.BOUNDARY] = wait * _boundary_log_odds(uses[PointKind.BOUNDARY], wait)
        favour[PointKind.REQUEST_END :] = self.page_favour(returns)
        saves = wait * math.log(2) * (np.arange(SAVE_CLASSES) - (SAVE_CLASSES - 1))
        return (favour[:, None] + saves[None, :]).astype(np.int64)


def _chances(returns: np.ndarray) -> np.ndarray:
    """Return the chance [PAGE_KINDS] that a request of a kind is continued."""
    overall = returns["returned"].sum() / returns["ended"].sum()
    shape = TURN_CLASSES, LENGTH_CLASSES
    ended, returned = (returns[name][1:].reshape(shape) for name in ("ended", "returned"))
    by_turns = (returned.sum(1) + PRIOR_ENDS * overall) / (ended.sum(1) + PRIOR_ENDS)
    prior = PRIOR_LENGTH_ENDS * by_turns[:, None]
    chances = ((returned + prior) / (ended + PRIOR_LENGTH_ENDS)).reshape(-1)
    # Kind 0 is what a running request left behind, or what lost all its branches.
    return np.concatenate((chances.min(keepdims=True), chances))


def _boundary_log_odds(uses: np.void, wait: float) -> float:
    """Return the logarithm of the uses that a boundary has in a mean wait, less the offset."""
    prior = _BOUNDARY_PRIOR * math.exp(_BOUNDARY_LOG_ODDS)
    rate = (int(uses["used"]) + prior) / (int(uses["lived"]) + _BOUNDARY_PRIOR * wait)
    log_uses = min(max(math.log(rate * wait), _LEAST_BOUNDARY), _MOST_BOUNDARY)
    return log_uses + _BOUNDARY_OFFSET


def _log_odds(chances: np.ndarray) -> np.ndarray:
    chances = chances.clip(LEAST_CHANCE, MOST_CHANCE)
    return np.log(chances / (1 - chances))


def _mean_wait(returns: np.ndarray) -> float:
    """Return the mean ticks that an end waited for its next turn, at least 1."""
    returned = int(returns["returned"].sum())
    return max(int(returns["waited"].sum()) / returned, 1.0) if returned else FIRST_WAIT
