"""The made-up network: what a position computes from its token and from what it reads.

Two layers with a window, one that reads the records of all positions before, and a state of the
last `RING` positions, as families of this runtime have them. All numbers are 64 bits:

    first(p)  = mix(token, records before p)
    second(p) = mix(first(p), window of first before p)
    record(p) = mix(second(p), window of second before p, state before p)

The next token is a hash of the last record, so that whatever a position reads wrongly changes it.
Only records have everything before them in them; that is why a replay of a few positions, which
reads records and starts with an empty window, is exact after two windows.
"""

from collections.abc import Callable
from operator import mul

import numpy as np

from mem_cache.spec import TreeSpec

MASK = (1 << 64) - 1
# Stands for NaN and infinities.
BAD = MASK
RING = 8
EOS = 256
LETTERS = 24
MOST_TOKENS = 1 << 12
_A, _B, _C, _D = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
)
WEIGHTS = (
    np.arange(1, MOST_TOKENS + 1, dtype=np.uint64) * np.uint64(0x2545F4914F6CDD1D)
) | np.uint64(1)
_WEIGHTS: list[int] = WEIGHTS.tolist()


def mix(value: int) -> int:
    """Return a hash of 64 bits, never `BAD`. Source: splitmix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    value ^= value >> 31
    return value if value != BAD else 0


def replay_tokens(spec: TreeSpec) -> int:
    """Return how many positions before one make its windows and its state exact."""
    return max(2 * spec.window - 1, RING if spec.has_state else 0, 0)


class Positions:
    """What has been computed of one sequence, from position `base` on.

    start    next position
    records  weighted sum of all records before it
    first, second  [start - base] values of the windows
    """

    def __init__(
        self,
        spec: TreeSpec,
        *,
        start: int = 0,
        base: int = 0,
        records: int = 0,
        first: list[int] | None = None,
        second: list[int] | None = None,
        ring: list[int] | None = None,
        ring_from: int = 0,
    ) -> None:
        self.spec = spec
        self.window, self.has_state = max(spec.window - 1, 0), spec.has_state
        self.start, self.base, self.records = start, base, records
        self.first = [] if first is None else first
        self.second = [] if second is None else second
        self.ring = [0] * RING if ring is None else ring
        self._ring_from = ring_from

    def copy(self) -> "Positions":
        """Return one that goes on from here; of windows it has what may still be asked for."""
        drop = max(0, self.start - self.base - 2 * self.spec.window - RING)
        return Positions(
            self.spec,
            start=self.start,
            base=self.base + drop,
            records=self.records,
            first=self.first[drop:],
            second=self.second[drop:],
            ring=[*self.ring],
        )

    def advance(self, token: int, stored: int | None = None) -> int:
        """Compute one position, and return its record.

        stored  the record that is there already, and that is read by all after it
        """
        p, weights = self.start, _WEIGHTS
        near = min(self.window, p - self.base)
        factors = weights[p - near : p]
        one = mix((token + 1) * _A + self.records & MASK)
        two = one
        if near:
            two = mix(one + _B * sum(map(mul, self.first[-near:], factors)) & MASK)
        value = two
        if near:
            value += _C * sum(map(mul, self.second[-near:], factors))
        if self.has_state:
            ring, slot = self.ring, p % RING
            least = max(self._ring_from, p - (RING - 1))
            if least < p:
                last = (ring[slot + 1 :] + ring[:slot])[least - p :]
                value += _D * sum(map(mul, last, weights[least:p]))
            ring[slot] = one
        record = mix(value & MASK)
        self.first.append(one)
        self.second.append(two)
        kept = record if stored is None else stored
        self.records = self.records + kept * weights[p] & MASK
        self.start += 1
        return record


def choose(
    record: int, *, seed: int | None, barred: frozenset[int], rank: Callable[[int], int] = mix
) -> int:
    """Return the token that follows a record.

    seed    of a request that is sampled; None: greedily
    barred  tokens that must not be it
    """
    value = record if seed is None else rank(record + seed * _A & MASK)
    while True:
        value = rank(value + _B & MASK)
        drawn = (value >> 11) % (LETTERS + 1)
        token = 97 + drawn if drawn < LETTERS else EOS
        if token not in barred:
            return token
