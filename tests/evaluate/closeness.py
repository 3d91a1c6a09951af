"""How close a choice of a token was, and how far arithmetic alone moves that.

The promise of greedy answers: after any reuse they equal a cold run's, except where the two
likeliest tokens were closer than the noise of the arithmetic. How large that is depends on the
model at hand, so it is measured on it, and without the cache: the same prompts are asked of a
server that reuses nothing and computes them in other steps and in other company. By how much the
distance between the two likeliest tokens differs there, at most, is the margin: no larger one is
excused, and what a cache does wrong is no part of it.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from tests.evaluate.answer import Answer, Choice

__all__ = ["Noise", "distance_at_fork", "measure_noise"]


@dataclass(frozen=True, slots=True)
class Noise:
    """By how much the distance between the two likeliest tokens differs, in nats.

    most     the largest difference, which is the margin
    typical  the median
    n        tokens that were compared
    """

    most: float
    typical: float
    n: int


def distance_at_fork(base: Answer, other: Answer) -> float | None:
    """Return how close, in nats, `base` was to go on as `other` did; None: the answers are equal.

    Infinite where it cannot be told: one of them ended before they differ, nothing was told of
    the choices, or what `other` took is not among the likeliest.
    """
    if base.token_ids == other.token_ids:
        return None
    at = _shared(base, other)
    if at >= min(map(len, (base.choices, other.choices, base.token_ids, other.token_ids))):
        return math.inf
    choice, taken = base.choices[at], other.choices[at].token
    if taken not in choice.likeliest:
        return math.inf
    return abs(choice.logprob - choice.likeliest[taken])


def measure_noise(pairs: Iterable[tuple[Answer, Answer]]) -> Noise | None:
    """Return what two answers to each prompt differ by; None where nothing was told of choices.

    They are compared up to the first token, that one included, which they do not share: so far
    both were chosen behind the same tokens.
    """
    found = sorted(shift for pair in pairs for shift in _shifts(*pair))
    if not found:
        return None
    return Noise(most=found[-1], typical=found[len(found) // 2], n=len(found))


def _shared(base: Answer, other: Answer) -> int:
    """Return how many tokens both begin with."""
    same = (a == b for a, b in zip(base.token_ids, other.token_ids, strict=False))
    return sum(takewhile(bool, same))


def _shifts(base: Answer, other: Answer) -> Iterator[float]:
    stop = _shared(base, other) + 1
    for one, two in zip(base.choices[:stop], other.choices[:stop], strict=False):
        second = max(one.rivals(), key=lambda token: one.likeliest[token], default=None)
        if second is not None:
            yield abs(_lead(one, one.token, second) - _lead(two, one.token, second))


def _lead(choice: Choice, first: str, second: str) -> float:
    """Return by how much `first` is likelier; what is not told counts as the least that is."""
    known = {**choice.likeliest, choice.token: choice.logprob}
    least = min(known.values())
    return known.get(first, least) - known.get(second, least)
