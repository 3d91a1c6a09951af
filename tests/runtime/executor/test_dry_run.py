"""The largest steps: as large as said, well-formed, and wanting of sampling whatever there is."""

import dataclasses
import itertools

import numpy as np
import pytest

import runtime.executor.dry_run as dry_run
from mem_cache.spec import TreeSpec
from runtime.executor.dry_run import Extent
from runtime.executor.plan_rows import PlanRows, sampled_entries
from runtime.executor.single_token_steps import is_single_token_step
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import StepPlan
from tests.testing.plan_arrays import PlanArrays, PlanReader

TREE = TreeSpec()
EXTENT = Extent(rows=5, chunk=100, context=4000, logit_rows=30, vocab=97)


def read(plan: StepPlan) -> PlanArrays:
    """Return a plan as arrays, its tables those that it tells."""
    return PlanReader(TREE).read(plan)


def decodes(plan: StepPlan) -> bool:
    return is_single_token_step(plan, PlanRows.of(plan.rows))


def test_steps_are_as_large_as_may_be() -> None:
    plans = EXTENT.steps(TREE)
    alone, together, decode = map(read, plans)

    assert (alone.chunk_len.tolist(), alone.chunk_start.tolist()) == ([100], [3900])
    assert together.chunk_len.tolist() == [20] * 5
    assert together.chunk_start.tolist() == [3980] * 5
    assert decode.chunk_start.tolist() == [3999] * 5
    assert [decodes(plan) for plan in plans] == [False, False, True]
    for plan in (alone, together):
        assert sum(len(unpacked(span.targets, INT32)) for span in plan.spans) == 30
        for span in plan.spans:
            first, count = plan.chunk_start[span.row], len(unpacked(span.targets, INT32))
            assert first <= span.start
            assert span.start + count <= first + plan.chunk_len[span.row]


def test_rows_share_the_context_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "STEP_CONTEXT_TOKENS", 6000)

    alone, together, *_ = map(read, EXTENT.steps(TREE))

    assert set(alone.save_position.tolist()) == {4000}
    assert set(together.save_position.tolist()) == {1200}


@pytest.mark.parametrize(("rows", "chunk", "context"), [(1, 1, 1), (5, 3, 2), (3, 64, 10)])
def test_the_smallest_server_has_its_steps_too(rows: int, chunk: int, context: int) -> None:
    extent = dataclasses.replace(EXTENT, rows=rows, chunk=chunk, context=context)

    for plan in map(read, extent.steps(TREE)):
        assert (plan.chunk_len >= 1).all()
        assert (plan.chunk_start >= 0).all()
        assert (plan.chunk_start + plan.chunk_len <= context).all()


def test_units_lie_in_the_pools_and_no_two_rows_write_to_one() -> None:
    sizes = EXTENT.pools(TREE)
    for plan in map(read, EXTENT.steps(TREE)):
        for name, most in (
            ("page_table", sizes.full_pages),
            ("window", sizes.swa_pages),
            ("save_window", sizes.swa_pages),
            ("ring", sizes.states),
        ):
            units = getattr(plan, name)
            assert (units.min() >= 1, units.max() <= most) == (True, True), name
            assert units.dtype == np.int32, name
        count = len(plan.line)
        for name in ("window", "ring"):
            units = getattr(plan, name).ravel()
            assert len(set(units.tolist())) == len(units), name
        # Of each row its own end, then a snapshot beside it, but for decode.
        own = np.unique(plan.save_row, return_index=True)[1]
        assert plan.save_window[own].tolist() == plan.window.tolist()
        beside = np.delete(plan.save_window, own, axis=0)
        single = is_single_token_step(plan.plan, PlanRows.of(plan.plan.rows))
        assert len(beside) == (0 if single else count)
        units = np.concatenate((plan.window.ravel(), beside.ravel()))
        assert len(set(units.tolist())) == len(units)
        assert len(plan.input_ids) == plan.chunk_len.sum()
        assert plan.input_ids.max() < EXTENT.vocab


def test_rows_want_whatever_takes_memory() -> None:
    for plan in EXTENT.steps(TREE):
        _, lines = sampled_entries(plan)
        assert plan.sampling is not None
        assert [join.line for join in plan.joins] == lines.tolist()
        assert [mask.line for mask in plan.sampling.masks] == lines.tolist()
        end = int(PlanRows.of(plan.rows).end.max())
        for join in plan.joins:
            wants = join.sampling
            assert wants.top_logprobs >= 0
            assert wants.constrained
            assert wants.stop_ids
            assert wants.min_new_tokens > end - wants.prompt_tokens
            assert wants.repetition_penalty != 1
            assert wants.prompt
            assert (wants.temperature > 0, wants.top_p < 1) == (True, True)
            assert wants.bias_ids
        assert plan.copies.pages
        assert plan.copies.windows
        assert plan.copies.states


@pytest.mark.parametrize("longest", [1, 5, 64, 100, 4096, 16384])
def test_prefill_is_warmed_up_for_all_sizes(longest: int) -> None:
    extent = dataclasses.replace(EXTENT, chunk=longest, context=20000)
    plans = [PlanRows.of(plan.rows) for plan in extent.warm_ups(TREE)]

    lengths = [int(plan.count.sum()) for plan in plans]
    assert lengths == sorted(set(lengths))
    assert (lengths[0], lengths[-1]) == (1, longest)
    for shorter, longer in itertools.pairwise(lengths):
        coarse = max(2 * shorter, shorter + 64)
        assert longer <= (coarse if shorter < 512 else 1.13 * shorter)
    assert all(len(plan.ids) == length for plan, length in zip(plans, lengths, strict=True))
    assert len(plans) < 64


@pytest.mark.parametrize("most", [1, 2, 9, 63, 64, 65, 100, 1000, 16384])
def test_products_meet_both_ends_of_every_stretch_of_rows(most: int) -> None:
    counts = dataclasses.replace(EXTENT, rows=1, chunk=most).product_rows()

    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, most)
    stretches = [(1, 8), (9, 16), (17, 32), (33, 64)]
    stretches += [(first, first + 63) for first in range(65, most + 1, 64)]
    for first, last in stretches:
        ends = {first, min(last, most)} if first <= most else set[int]()
        assert ends <= set(counts)


def test_the_head_meets_as_many_rows_as_a_step_may_ask_for() -> None:
    assert EXTENT.head_rows()[-1] == EXTENT.rows + EXTENT.logit_rows
    assert dataclasses.replace(EXTENT, rows=200).product_rows()[-1] == 200


def test_products_of_ranks_that_meet_at_the_experts_have_the_rows_of_all() -> None:
    meeting = dataclasses.replace(EXTENT, meeting=4)

    assert meeting.product_rows()[-1] == 4 * EXTENT.chunk
    assert meeting.head_rows() == EXTENT.head_rows()


def test_steps_of_fewer_rows_are_warmed_up_too() -> None:
    for rows, prefilled, decoded in (
        (1, [1], [1]),
        (32, [1, 3, 16], [1]),
        (33, [1, 3, 16], [1, 32]),
        (100, [1, 3, 16], [1, 32, 64, 96]),
    ):
        plans = dataclasses.replace(EXTENT, rows=rows).row_warm_ups(TREE)

        seen: dict[bool, list[PlanRows]] = {False: [], True: []}
        for plan in plans:
            seen[decodes(plan)].append(PlanRows.of(plan.rows))
        assert [len(rows.line) for rows in seen[False]] == prefilled
        assert [len(rows.ids) for rows in seen[False]] == prefilled
        assert [len(rows.ids) for rows in seen[True]] == decoded
