"""What ranks that have rows of their own must know of each other's in a step."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.executor.plan_rows import PlanRows
from runtime.executor.single_token_steps import is_single_token_step
from runtime.wire.arrays import INT32
from runtime.wire.step import StepPlan

__all__ = ["JointTokens"]


@dataclass(frozen=True, slots=True)
class JointTokens:
    """The sizes of one step of all ranks; each rank finds the same from the same sections.

    counts   tokens of each rank, at least 1: one without rows has a token that nobody wants
    decodes  a decode step computes what each rank is asked for
    nothing  no rank is asked for anything: nothing is computed
    """

    counts: tuple[int, ...]
    decodes: bool
    nothing: bool = False

    @classmethod
    def of(cls, sections: Sequence[StepPlan | None]) -> "JointTokens":
        """Return the sizes of a step. Raises ValueError where a section's sizes do not fit."""
        plans = [plan for plan in sections if plan is not None]
        counts = tuple(map(_tokens, sections))
        return cls(counts, decodes=all(map(_decodes, plans)), nothing=not plans)


def _tokens(plan: StepPlan | None) -> int:
    return max(1, len(plan.rows.ids) // INT32.itemsize) if plan is not None else 1


def _decodes(plan: StepPlan) -> bool:
    # Most steps that are none are known by their sizes.
    if len(plan.rows.ids) != len(plan.rows.line):
        return False
    return is_single_token_step(plan, PlanRows.of(plan.rows))
