"""Shares of right answers with intervals, and what changed between two runs of the same cases."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap

from tests.evaluate.closeness import distance_at_fork
from tests.evaluate.conditions import Outcome

# Of a normal distribution, 95 % lie within so many standard deviations.
_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many; `low` and `high` bound the true share with 95 % confidence (Wilson)."""

    hits: int
    n: int

    @property
    def value(self) -> float:
        """The share; NaN of nothing."""
        return self.hits / self.n if self.n else math.nan

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self._bound(-1)

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self._bound(1)

    def _bound(self, side: int) -> float:
        if not self.n:
            return (1 + side) / 2
        p, n, z2 = self.value, self.n, _Z95**2
        middle = p + z2 / (2 * n)
        spread = _Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
        bound = (middle + side * spread) / (1 + z2 / n)
        # Rounding must not take it to the wrong side of the share, nor out of all shares.
        return min(1.0, max(p, bound)) if side > 0 else max(0.0, min(p, bound))


def share(flags: Iterable[bool]) -> Share:
    """Return how many of `flags` are true."""
    told = list(flags)
    return Share(sum(told), len(told))


# A cell of the table: its row, and the distance or None.
Place = tuple[str, int | None]


def by_place(
    outcomes: Iterable[Outcome], what: Callable[[Outcome], bool] = lambda one: one.verdict.right
) -> dict[Place, Share]:
    """Return the share of outcomes for which `what` holds, by row and distance."""
    flags: dict[Place, list[bool]] = {}
    for one in outcomes:
        flags.setdefault((one.case.row, one.case.distance), []).append(what(one))
    return {place: share(told) for place, told in flags.items()}


@dataclass(frozen=True, slots=True)
class Paired:
    """What became of the same cases in another run.

    same_tokens  the answers are equal token by token
    same_bits    and so is every log-probability that was told, of which there were some
    excused      they are not, but where they part the choice was closer than the margin
    lost         right before, wrong now; gained: the other way round
    widest       of the choices where answers part, how far the least close one was, in nats
    """

    n: int
    same_tokens: int
    lost: int
    gained: int
    same_bits: int = 0
    excused: int = 0
    widest: float = 0.0

    @property
    def faults(self) -> int:
        """How many answers differ and are not excused."""
        return self.n - self.same_tokens - self.excused

    @property
    def points(self) -> float:
        """By how many points of accuracy the other run is better; NaN without cases."""
        return 100 * (self.gained - self.lost) / self.n if self.n else math.nan

    @property
    def error(self) -> float:
        """Standard error of `points`, from the cases that changed."""
        if not self.n:
            return math.nan
        changed, net = self.lost + self.gained, self.gained - self.lost
        return 100 * math.sqrt(max(0.0, changed - net * net / self.n)) / self.n


def compare(base: Iterable[Outcome], other: Iterable[Outcome], *, margin: float = 0.0) -> Paired:
    """Return what changed from `base` to `other` in the cases that both have.

    margin  in nats; answers that part where `base` chose more closely than that are excused
    """
    known = {one.case.key: one for one in base}
    pairs = [(known[one.case.key], one) for one in other if one.case.key in known]
    answers = [(a.answer, b.answer) for a, b in pairs]
    forks = [at for at in starmap(distance_at_fork, answers) if at is not None]
    return Paired(
        n=len(pairs),
        same_tokens=sum(a.answer.token_ids == b.answer.token_ids for a, b in pairs),
        lost=sum(a.verdict.right and not b.verdict.right for a, b in pairs),
        gained=sum(b.verdict.right and not a.verdict.right for a, b in pairs),
        same_bits=sum(
            bool(a.choices) and (a.token_ids, a.choices) == (b.token_ids, b.choices)
            for a, b in answers
        ),
        excused=sum(at < margin for at in forks),
        widest=max(forks, default=0.0),
    )


def compare_rows(base: Sequence[Outcome], other: Sequence[Outcome]) -> dict[str, Paired]:
    """Return `compare` for each row of the table."""
    rows = dict.fromkeys(one.case.row for one in other)
    return {
        row: compare(
            (one for one in base if one.case.row == row),
            (one for one in other if one.case.row == row),
        )
        for row in rows
    }
