"""Tables of simulations, and what is asked of the exact router."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.replicas.routers import POOLED
from tests.bench.replicas.simulation import Outcome

OURS = "exact"
# Of the hits of one cache with all bytes.
LEAST_SHARE = 0.90
_HEAD = ("trace", "policy", "hit", "TTFT mean, s", "p50", "p99", "last token, s", "busiest")


@dataclass(frozen=True, slots=True)
class Cell:
    """One trace on replicas of one kind.

    outcomes  by policy
    """

    name: str
    outcomes: dict[str, Outcome]

    def as_json(self) -> dict[str, Any]:
        """Return the figures of all policies."""
        return {"cell": self.name, "policies": {k: figures(o) for k, o in self.outcomes.items()}}


def figures(outcome: Outcome) -> dict[str, float]:
    """Return what a table has of one simulation."""
    return {
        "hit": outcome.hit,
        "ttft_mean_s": float(outcome.ttft_s.mean()),
        "ttft_p50_s": outcome.percentile(0.5),
        "ttft_p99_s": outcome.percentile(0.99),
        "total_mean_s": outcome.total_s,
        "busiest": outcome.busiest,
    }


def table_head() -> str:
    """Return the head of the table of policies."""
    return f"| {' | '.join(_HEAD)} |\n" + "|---" * len(_HEAD) + "|"


def table(name: str, policy: str, outcome: Outcome) -> str:
    """Return a row of it."""
    hit, *times, total, busiest = figures(outcome).values()
    shown = " | ".join(f"{seconds:.2f}" for seconds in (*times, total, busiest))
    return f"| {name} | {policy} | {hit:.3f} | {shown} |"


def comparison(cells: Sequence[Cell]) -> str:
    """Return what the exact router has beside the others, line by line, as far as they ran."""
    return "\n".join(line for cell in cells for line in _compared(cell))


def _compared(cell: Cell) -> list[str]:
    ours = cell.outcomes.get(OURS)
    if ours is None:
        return []
    lines: list[str] = []
    for policy, other in cell.outcomes.items():
        hits = ours.hit / other.hit if other.hit else float("inf")
        p99, theirs = ours.percentile(0.99), other.percentile(0.99)
        if policy == POOLED:
            met = hits >= LEAST_SHARE
            told = f"{hits:.3f} of its hits ({LEAST_SHARE} asked)"
        elif policy == "least-load":
            met = p99 <= theirs
            told = f"p99 {p99:.2f} s for {theirs:.2f}"
        elif policy in ("random", "ray-prefix"):
            met = ours.hit > other.hit and p99 < theirs
            told = f"hits {ours.hit:.3f} for {other.hit:.3f}, p99 {p99:.2f} s for {theirs:.2f}"
        else:
            continue
        lines.append(f"{cell.name}, {OURS} against {policy}: {told}: {'met' if met else 'MISSED'}")
    return lines
