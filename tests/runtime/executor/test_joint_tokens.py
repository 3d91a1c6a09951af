"""What ranks know of each other's rows: how many tokens, and whether all are decoded."""

import pytest

from mem_cache.spec import TreeSpec
from runtime.executor.joint_tokens import JointTokens
from runtime.wire.step import PromptSpan, StepPlan
from tests.testing.plans import PlannedRow, Plans


def plan(*counts: int, start: int = 9, spans: int = 0) -> StepPlan:
    """Return a step of rows of so many tokens, all of which begin at `start`."""
    rows = [PlannedRow(line, start, [7] * count) for line, count in enumerate(counts)]
    return Plans(TreeSpec()).plan(*rows, spans=[PromptSpan(0, start, bytes(4), 0)] * spans)


@pytest.mark.parametrize(
    ("sections", "counts", "decodes"),
    [
        ([plan(1, 1, 1), plan(1)], (3, 1), True),
        ([plan(1, 1), None], (2, 1), True),
        ([None, plan()], (1, 1), True),
        ([plan(1), plan(1, 5)], (1, 6), False),
        ([plan(1), plan(1, start=0)], (1, 1), False),
        ([plan(1, spans=1), None], (1, 1), False),
    ],
)
def test_sizes_of_a_step_are_those_of_its_sections(
    sections: list[StepPlan | None], counts: tuple[int, ...], decodes: bool
) -> None:
    assert JointTokens.of(sections) == JointTokens(counts, decodes)


def test_a_step_of_which_no_rank_has_a_part_computes_nothing() -> None:
    assert JointTokens.of([None, None]).nothing
    assert not JointTokens.of([None, plan()]).nothing
