"""Which steps of one token a row decode, and what is left to copy after them."""

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.executor.plan_rows import PlanRows
from runtime.executor.single_token_steps import is_single_token_step, run_saves
from runtime.wire.arrays import INT32, packed, unpacked
from runtime.wire.step import PromptSpan, Saves, StepPlan
from tests.testing.plan_arrays import PlanArrays, PlanReader
from tests.testing.plans import PlannedRow, Plans, fed
from tests.testing.scheduler_rig import Rig

PROMPTS = (list(range(300)), list(range(20, 35)))
FIRST, SECOND = PlannedRow(2, 299, [7]), PlannedRow(0, 14, [8])


def is_decode(plan: StepPlan) -> bool:
    return is_single_token_step(plan, PlanRows.of(plan.rows))


def changed(row: PlannedRow, **fields: Any) -> PlannedRow:
    return dataclasses.replace(row, **fields)


def test_single_tokens_that_are_sampled_decode_wherever_they_come_from() -> None:
    plan = Plans(TreeSpec()).plan(FIRST, SECOND)

    assert is_decode(plan)
    assert is_decode(fed(plan, 1))
    resumed = changed(FIRST, write_from=299)
    assert is_decode(Plans(TreeSpec()).plan(resumed, SECOND))


@pytest.mark.parametrize(
    "rows",
    [
        (FIRST, changed(SECOND, ids=[7, 8])),
        (changed(FIRST, sampled=False), SECOND),
        (FIRST, changed(SECOND, twins=(4,))),
        (FIRST, changed(SECOND, start=0)),
        (FIRST, changed(SECOND, window_from=3)),
        (changed(FIRST, write_from=300), SECOND),
        (FIRST, changed(SECOND, ids=[7, 8], drafts=1)),
    ],
    ids=["chunk", "unsampled", "twin", "first token", "replay", "unwritten", "drafts"],
)
def test_a_step_that_does_more_is_a_prefill(rows: tuple[PlannedRow, ...]) -> None:
    assert not is_decode(Plans(TreeSpec()).plan(*rows))


def test_rows_sampled_in_another_order_and_spans_make_a_prefill() -> None:
    plan = Plans(TreeSpec()).plan(FIRST, SECOND)
    turned = packed([[1, 0], [0, 2]], INT32)
    span = PromptSpan(0, 299, packed([0], INT32), top=0)

    assert not is_decode(msgspec.structs.replace(plan, sampled=turned))
    assert not is_decode(msgspec.structs.replace(plan, spans=[span]))


class _Noting:
    """Pools that note what is copied."""

    def __init__(self) -> None:
        self.swa: list[tuple[int, int]] = []
        self.states: list[tuple[int, int, int]] = []

    def copy_swa_pages(self, pairs: list[tuple[int, int]]) -> None:
        self.swa += pairs

    def copy_states(self, copies: list[tuple[int, int, int]]) -> None:
        self.states += copies


def repeated() -> tuple[PlanArrays, PlanReader]:
    """Return the prefill step of prompts that are cached but for their last token, and tables."""
    rig = Rig(PoolSizes(40, 40, 12), spec=TreeSpec(), chunk=400)
    for _ in range(2):
        for prompt in PROMPTS:
            rig.send(prompt, 3)
        rig.run()
    reader, found = PlanReader(rig.spec), None
    for plan in rig.plans:
        reader.read(plan.plan)
        if plan.chunk_start.tolist() == [299, 14]:
            found = plan
            break
    assert found is not None
    return found, reader


def test_a_cached_prompt_leaves_a_single_token_and_resume_points_get_what_its_row_has() -> None:
    (plan, reader), pools = repeated(), _Noting()
    rows = PlanRows.of(plan.plan.rows)
    assert is_single_token_step(plan.plan, rows)
    assert plan.save_row.tolist() == [0, 0, 1, 1]

    run_saves(plan.plan, rows, reader.tables, pools)  # pyright: ignore[reportArgumentType]

    (first, one, second, two) = plan.save_ring.tolist()
    assert pools.states == [(first, one, 300), (second, two, 15)]
    target = plan.save_window[[1, 3]]
    own = plan.save_window[[0, 2]]
    kept = target != 0
    assert kept.any(1).all()
    assert (own[kept] != 0).all()
    assert pools.swa == [*zip(own[kept].tolist(), target[kept].tolist(), strict=True)]


def test_only_rows_with_a_resume_point_are_copied() -> None:
    plans, pools = Plans(TreeSpec()), _Noting()
    plan, tables = plans.plan(FIRST, SECOND), plans.tables
    tables.apply(plan.changes)
    window = np.zeros(plans.tree.window_pages, dtype=np.int32)
    window[1] = 99
    saves = Saves(packed([1], INT32), bytes(8), packed([50], INT32), packed(window, INT32))
    told = msgspec.structs.replace(plan, saves=saves)

    run_saves(told, PlanRows.of(plan.rows), tables, pools)  # pyright: ignore[reportArgumentType]

    assert unpacked(plan.rows.line, INT32)[1] == 0
    assert pools.swa == [(int(tables.window[0, 1]), 99)]
    assert pools.states == [(1, 50, 0)]


def test_without_resume_points_nothing_is_copied() -> None:
    plans, pools = Plans(TreeSpec()), _Noting()
    plan = plans.plan(FIRST, SECOND)

    run_saves(plan, PlanRows.of(plan.rows), plans.tables, pools)  # pyright: ignore[reportArgumentType]

    assert not pools.swa
    assert not pools.states
