"""Plans as tensors: right types, right order of logits and saves, nothing shared with tables."""

import dataclasses

import msgspec
import numpy as np
import torch

from layers.steps.forward_batch import ForwardBatch
from mem_cache.spec import TreeSpec
from runtime.executor.batch_builder import build_batch, fed_tokens, logit_tokens
from runtime.executor.line_tables import LineTables
from runtime.executor.plan_rows import PlanRows
from runtime.wire.arrays import INT32, INT64, packed
from runtime.wire.step import PromptSpan, Saves, StepPlan
from tests.testing.fused_rig import DEVICE
from tests.testing.plans import PlannedRow, Plans, packed_rows

TREE = TreeSpec(page_size=8, swa_page_size=4, window=8)
WIDTH = TREE.window_pages
SHORT = {"page_table", "window", "ring", "save_ring", "save_window"}


def span(row: int, start: int, count: int) -> PromptSpan:
    return PromptSpan(row, start, packed(np.zeros(count), INT32), top=0)


class Built:
    """Tables that follow the plans of batches."""

    def __init__(self) -> None:
        self.plans = Plans(TREE, lines=4, pages=9)
        self.tables: LineTables = self.plans.tables

    def batch(self, plan: StepPlan) -> ForwardBatch:
        """Return the batch of a plan."""
        self.tables.apply(plan.changes)
        return build_batch(plan, PlanRows.of(plan.rows), self.tables, page_size=TREE.page_size)


def wanted(plan: StepPlan) -> list[int]:
    return logit_tokens(plan, PlanRows.of(plan.rows)).tolist()


def test_every_field_has_its_type_and_the_values_of_the_plan() -> None:
    built = Built()
    window = np.arange(1, 1 + 4 * WIDTH).reshape(4, WIDTH)
    for first in (0, 5):
        rows = (
            PlannedRow(2, first, [7, 8, 9], window_from=first // 2, write_from=1),
            PlannedRow(0, first + 13, [5], sampled=False),
        )
        batch = built.batch(built.plans.plan(*rows))

        columns = 2 if first == 0 else 3
        assert {f.name: getattr(batch, f.name).tolist() for f in dataclasses.fields(batch)} == {
            "input_ids": [7, 8, 9, 5],
            "chunk_start": [first, first + 13],
            "chunk_len": [3, 1],
            "page_table": [[19, 20, 21][:columns], [1, 2, 3][:columns]],
            "window": window[[2, 0]].tolist(),
            "ring": [3, 1],
            "window_from": [first // 2, 0],
            "write_from": [1, 0],
            "save_row": [0, 1],
            "save_position": [first + 3, first + 14],
            "save_ring": [3, 1],
            "save_window": window[[2, 0]].tolist(),
            "logit_tokens": [2],
        }
        for field in dataclasses.fields(batch):
            dtype = torch.int32 if field.name in SHORT else torch.int64
            assert getattr(batch, field.name).dtype == dtype, field.name


def test_a_row_s_save_at_its_end_comes_before_its_others() -> None:
    built = Built()
    plan = built.plans.plan(*(PlannedRow(line, 0, [1] * 6) for line in (1, 0, 3)))
    targets = np.arange(100, 100 + 3 * WIDTH).reshape(3, WIDTH)
    saves = Saves(
        row=packed([2, 0, 2], INT32),
        position=packed([4, 5, 6], INT64),
        state=packed([70, 71, 72], INT32),
        window=packed(targets, INT32),
    )

    batch = built.batch(msgspec.structs.replace(plan, saves=saves))

    assert batch.save_row.tolist() == [0, 0, 1, 2, 2, 2]
    assert batch.save_position.tolist() == [6, 5, 6, 6, 4, 6]
    assert batch.save_ring.tolist() == [2, 71, 1, 4, 70, 72]
    assert batch.save_window[[1, 4, 5]].tolist() == targets[[1, 0, 2]].tolist()
    assert batch.save_window[[0, 2, 3]].tolist() == batch.window.tolist()


def test_a_batch_shares_no_memory_with_the_tables() -> None:
    built = Built()
    batch = built.batch(built.plans.plan(PlannedRow(2, 0, [7, 8, 9])))
    before = {f.name: getattr(batch, f.name).clone() for f in dataclasses.fields(batch)}

    for table in (built.tables.pages, built.tables.window, built.tables.state):
        table[...] = 99

    for name, tensor in before.items():
        assert torch.equal(getattr(batch, name), tensor), name


def test_the_last_token_of_each_sampled_row_gets_logits() -> None:
    plans = Plans(TREE)
    rows = [PlannedRow(0, 0, [1] * 5), PlannedRow(1, 0, [1] * 11, sampled=False)]

    assert wanted(plans.plan(*rows)) == [4]
    assert wanted(plans.plan(PlannedRow(1, 11, [2]), PlannedRow(0, 5, [3]))) == [0, 1]


def test_twins_get_the_logits_of_their_row() -> None:
    plan = Plans(TREE).plan(PlannedRow(0, 0, [1] * 5, twins=(4, 5)), PlannedRow(1, 0, [1]))

    assert wanted(plan) == [4, 4, 4, 5]


def test_drafts_get_the_logits_that_they_are_guesses_behind() -> None:
    plan = Plans(TREE).plan(
        PlannedRow(0, 4, [1, 2, 3], drafts=2),
        PlannedRow(1, 4, [1]),
        PlannedRow(2, 4, [1, 2, 3], drafts=1),
        PlannedRow(3, 4, [1, 2], drafts=1, sampled=False),
    )

    assert wanted(plan) == [0, 1, 2, 3, 5, 6]


def test_prompt_positions_follow_the_sampled_rows_in_the_order_of_the_spans() -> None:
    plans = Plans(TREE)
    rows = [PlannedRow(0, 100, [1] * 5, sampled=False), PlannedRow(1, 40, [1] * 11)]

    plan = plans.plan(*rows, spans=[span(1, 41, 3), span(0, 100, 2)])

    assert wanted(plan) == [15, 6, 7, 8, 0, 1]


def test_a_step_may_want_no_logits_at_all() -> None:
    built = Built()

    batch = built.batch(built.plans.plan(PlannedRow(0, 0, [1, 2], sampled=False)))

    assert batch.logit_tokens.shape == (0,)
    assert batch.logit_tokens.dtype == torch.int64


def test_a_chunk_may_begin_with_a_token_of_the_device() -> None:
    last = torch.arange(100, 132, device=DEVICE)
    given = [PlannedRow(4, 9, [0, 8, 8], 1), PlannedRow(1, 9, [7]), PlannedRow(3, 9, [0], 2)]

    told = fed_tokens(PlanRows.of(packed_rows(given)), last)

    assert told is not None
    assert (told.at.tolist(), told.ids.tolist()) == ([0, 4], [104, 103])
    assert told.at.dtype == told.ids.dtype == torch.int64
    last.zero_()
    assert told.ids.tolist() == [104, 103]
    assert fed_tokens(PlanRows.of(packed_rows(given[1:2])), last) is None
