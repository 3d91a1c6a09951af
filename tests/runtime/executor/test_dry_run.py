"""The largest steps: as large as said, well-formed, and wanting of sampling whatever there is."""

import dataclasses
import itertools

import numpy as np
import pytest

import runtime.executor.dry_run as dry_run
from layers.config import pool_spec
from runtime.executor.dry_run import Extent
from runtime.executor.step_plan import Phase
from tests.testing.tiny_model import CONFIG

SPEC = pool_spec(CONFIG, "fp32")
EXTENT = Extent(rows=5, chunk=100, context=4000, logit_rows=30, vocab=97)


def test_steps_are_as_large_as_may_be() -> None:
    alone, together, decode = EXTENT.steps(SPEC)

    assert (alone.chunk_len.tolist(), alone.chunk_start.tolist()) == ([100], [3900])
    assert together.chunk_len.tolist() == [20] * 5
    assert together.chunk_start.tolist() == [3980] * 5
    assert decode.chunk_start.tolist() == [3999] * 5
    assert decode.phase is Phase.DECODE
    for plan in (alone, together):
        assert sum(span.stop - span.start for span in plan.prompt_logprobs) == 30


def test_rows_share_the_context_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "STEP_CONTEXT_TOKENS", 6000)

    alone, together, *_ = EXTENT.steps(SPEC)

    assert alone.save_position.tolist() == [4000]
    assert together.save_position.tolist() == [1200] * 5


@pytest.mark.parametrize(("rows", "chunk", "context"), [(1, 1, 1), (5, 3, 2), (3, 64, 10)])
def test_the_smallest_server_has_its_steps_too(rows: int, chunk: int, context: int) -> None:
    extent = dataclasses.replace(EXTENT, rows=rows, chunk=chunk, context=context)

    for plan in extent.steps(SPEC):
        assert (plan.chunk_len >= 1).all()
        assert (plan.chunk_start >= 0).all()
        assert (plan.chunk_start + plan.chunk_len <= context).all()


def test_units_lie_in_the_pools_and_no_two_rows_write_to_one() -> None:
    sizes = EXTENT.pools(SPEC)
    for plan in EXTENT.steps(SPEC):
        for name, most in (
            ("page_table", sizes.full_pages),
            ("window", sizes.swa_pages),
            ("save_window", sizes.swa_pages),
            ("ring", sizes.rings),
        ):
            units = getattr(plan, name)
            assert (units.min() >= 1, units.max() <= most) == (True, True), name
            assert units.dtype == np.int32, name
        for name in ("window", "save_window", "ring"):
            units = getattr(plan, name).ravel()
            assert len(set(units.tolist())) == len(units), name
        assert len(plan.input_ids) == plan.chunk_len.sum()
        assert plan.input_ids.max() < EXTENT.vocab


def test_rows_want_whatever_takes_memory() -> None:
    *_, decode = EXTENT.steps(SPEC)

    for sample in decode.samples:
        assert sample.is_ready
        assert sample.logprobs is not None
        assert sample.constraint is not None
        assert sample.sampling.min_new_tokens > len(sample.output)
        assert sample.sampling.repetition_penalty != 1
        assert sample.sampling.top_p < 1
        assert sample.sampling.logit_bias


@pytest.mark.parametrize("longest", [1, 5, 64, 100, 4096, 16384])
def test_prefill_is_warmed_up_for_all_sizes(longest: int) -> None:
    plans = dataclasses.replace(EXTENT, chunk=longest, context=20000).warm_ups(SPEC)

    lengths = [int(plan.chunk_len.sum()) for plan in plans]
    assert lengths == sorted(set(lengths))
    assert (lengths[0], lengths[-1]) == (1, longest)
    for shorter, longer in itertools.pairwise(lengths):
        coarse = max(2 * shorter, shorter + 64)
        assert longer <= (coarse if shorter < 512 else 1.13 * shorter)
    assert all(len(plan.input_ids) == length for plan, length in zip(plans, lengths, strict=True))
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


def test_steps_of_fewer_rows_are_warmed_up_too() -> None:
    for rows, prefilled, decoded in (
        (1, [1], [1]),
        (32, [1, 3, 16], [1]),
        (33, [1, 3, 16], [1, 32]),
        (100, [1, 3, 16], [1, 32, 64, 96]),
    ):
        plans = dataclasses.replace(EXTENT, rows=rows).row_warm_ups(SPEC)

        seen = {phase: [plan for plan in plans if plan.phase is phase] for phase in Phase}
        assert [len(plan.chunk_len) for plan in seen[Phase.PREFILL]] == prefilled
        assert [len(plan.input_ids) for plan in seen[Phase.PREFILL]] == prefilled
        assert [len(plan.input_ids) for plan in seen[Phase.DECODE]] == decoded
