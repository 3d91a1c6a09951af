"""Chunks under their budgets, and the log-probabilities of prompts across them."""

import random

import numpy as np
import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.messages import Logprobs
from tests.runtime.scheduler.test_prefill_shares import admitted
from tests.testing.plan_arrays import PlanArrays
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output, prefix_hashes

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=100, swa_pages=100, states=30)


LONG_AND_SHORT = ((1, 150), (2, 20), (3, 60), (4, 10))


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(40), k=length)


def prefills(rig: Rig) -> list[PlanArrays]:
    return [plan for plan in rig.plans if not plan.decodes]


def assert_prompt_values(rig: Rig, request: int, prompt: list[int], start: int) -> None:
    """Assert that what was reported are the token runner's own values from `start` on."""
    reported = rig.outputs(request)[0].prompt_logprobs
    assert reported is not None
    hashes = prefix_hashes(np.array(prompt))
    expected = [float(h % np.uint64(97)) for h in hashes[start:-1]]
    assert reported.ids == prompt[start:]
    assert reported.values == [None, *expected]
    assert rig.cached(request) <= start


def test_a_budget_is_shared_out_and_rows_stand_in_the_order_of_admission() -> None:
    rig = Rig(AMPLE, chunk=16)
    for seed, length in ((1, 10), (2, 20), (3, 5)):
        rig.send(prompt_of(seed, length), 0)
    rig.run()

    steps = [
        list(zip(p.chunk_start.tolist(), p.chunk_len.tolist(), strict=True)) for p in prefills(rig)
    ]
    # Three steps of 12 or whole prompts.
    assert steps == [[(0, 10), (0, 5)], [(0, 16)], [(16, 4)]]
    rig.assert_conserved()


def test_without_a_budget_whole_prompts_go_in_one_step() -> None:
    rig = Rig(AMPLE, chunk=-1)
    for seed in range(3):
        rig.send(prompt_of(seed, 100), 1)
    rig.run()

    assert [len(p.input_ids) for p in prefills(rig)] == [300]


def test_rows_that_make_the_context_of_a_step_too_long_wait_for_another() -> None:
    rig = Rig(AMPLE, chunk=30)
    rig.replica._planning._planner._context = 100
    lengths = {rig.send(prompt_of(seed, length), 2): length for seed, length in LONG_AND_SHORT}
    rig.run()

    for plan in prefills(rig):
        ends = (plan.chunk_start + plan.chunk_len).tolist()
        assert len(ends) == 1 or sum(ends) <= 100
    assert max(int(plan.save_position.max()) for plan in prefills(rig)) == 150
    assert any(len(plan.chunk_len) > 1 for plan in prefills(rig))
    assert all(len(rig.tokens(request)) == 2 for request in lengths)
    rig.assert_conserved()


def test_the_less_urgent_are_left_out_of_a_context_that_is_too_long() -> None:
    planner = Rig(AMPLE).replica._planning._planner
    planner._context = 100
    old, urgent = admitted(60, ident=1), admitted(60, ident=2, priority=1)

    assert planner._within_context([(old, 60), (urgent, 60)]) == [(urgent, 60)]


def test_twins_beyond_what_a_step_may_sample_are_sampled_later() -> None:
    rig = Rig(AMPLE, rows=1, chunk=30)
    rig.replica._planning._planner._samples = 3
    prompt = prompt_of(1, 20)
    requests = [rig.send(prompt, 2) for _ in range(6)]
    rig.run()

    assert max(len(plan.sampled) for plan in prefills(rig)) == 3
    assert [rig.tokens(request) for request in requests] == [expected_output(prompt, 2, 50)] * 6
    rig.assert_conserved()


def test_only_rows_that_reach_their_end_and_want_tokens_are_sampled() -> None:
    rig = Rig(AMPLE, chunk=16)
    prompts = [prompt_of(4, 6), prompt_of(5, 7), prompt_of(6, 34)]
    for prompt, new in zip(prompts, (0, 2, 2), strict=True):
        rig.send(prompt, new)
    rig.scheduler.turn()

    plan = rig.plans[0]
    assert plan.chunk_len.tolist() == [6, 7, 3]
    assert plan.sampled.tolist() == [1]
    assert plan.positions.tolist() == [7]
    assert len(plan.sampled) == 1


def test_every_row_saves_its_own_state_and_every_wanted_point() -> None:
    rig = Rig(AMPLE, chunk=16)
    rig.send(prompt_of(7, 20), 1)
    rig.run()
    first, second = prefills(rig)

    assert first.save_position.tolist() == [16]
    assert first.save_ring.tolist() == first.ring.tolist()
    assert second.save_position.tolist() == [20, 20]
    assert second.save_ring[0] == second.ring[0] != second.save_ring[1]
    assert not set(second.save_window[0]) & set(second.save_window[1])


@pytest.mark.parametrize("chunk", [1, 7, 16, -1])
@pytest.mark.parametrize("start", [0, 1, 13, 38, 39])
@pytest.mark.parametrize("warm", [False, True])
def test_prompt_values_are_whole_across_chunks_and_cache_hits(
    chunk: int, start: int, warm: bool
) -> None:
    rig = Rig(AMPLE, chunk=chunk)
    prompt = prompt_of(8, 40)
    if warm:
        rig.send(prompt, 1)
        rig.send(prompt[:20], 1)
        rig.run()
    request = rig.send(prompt, 2, logprobs=Logprobs(start))
    rig.run()

    assert_prompt_values(rig, request, prompt, start)
    assert rig.tokens(request) == expected_output(prompt, 2, 50)
    rig.assert_conserved()


def test_a_chunk_that_ends_where_the_values_begin_tells_none() -> None:
    rig = Rig(AMPLE, chunk=16)
    rig.send(prompt_of(8, 32), 1, logprobs=Logprobs(16))
    rig.run()

    told = [plan.ranges for plan in prefills(rig)]
    assert told == [[], [(16, 31)]]


@pytest.mark.parametrize("turns", range(1, 8))
def test_prompt_values_are_whole_after_a_retraction(turns: int) -> None:
    rig = Rig(AMPLE, chunk=7)
    prompt = prompt_of(9, 40)
    request = rig.send(prompt, 6, logprobs=Logprobs(3))
    for _ in range(turns):
        rig.scheduler.turn()

    rig.replica._retract(rig.request(request))
    rig.run()

    assert_prompt_values(rig, request, prompt, 3)
    assert rig.tokens(request) == expected_output(prompt, 6, 50)
    rig.assert_conserved()


def test_nothing_is_computed_again_of_a_prompt_whose_values_are_told() -> None:
    rig = Rig(AMPLE, chunk=7, overlap=False)
    request = rig.send(prompt_of(9, 40), 6, logprobs=Logprobs(3))
    rig.turn_until(lambda: bool(rig.tokens(request)))

    rig.replica._retract(rig.request(request))
    rig.run()

    assert rig.runner.computed_tokens == 40 + 5
    rig.assert_conserved()


@pytest.mark.parametrize("logit_rows", [1, 4, 39])
@pytest.mark.parametrize("chunk", [5, 16, -1])
def test_a_step_computes_no_more_logits_of_prompts_than_allowed(
    logit_rows: int, chunk: int
) -> None:
    rig = Rig(AMPLE, chunk=chunk, logit_rows=logit_rows)
    prompts = [prompt_of(10 + i, 41 - i) for i in range(3)]
    starts = (0, 20, 5)
    requests = [rig.send(p, 2, logprobs=Logprobs(s)) for p, s in zip(prompts, starts, strict=True)]
    rig.run()

    counts = [sum(stop - start for start, stop in plan.ranges) for plan in rig.plans]
    assert max(counts) <= logit_rows
    for request, prompt, start in zip(requests, prompts, starts, strict=True):
        assert_prompt_values(rig, request, prompt, start)
        assert rig.tokens(request) == expected_output(prompt, 2, 50)
    rig.assert_conserved()


@pytest.mark.parametrize("length", [1, 2])
def test_values_of_the_shortest_prompts(length: int) -> None:
    rig = Rig(AMPLE, spec=TreeSpec(1, 1, 3))
    prompt = prompt_of(20, length)
    request = rig.send(prompt, 1, logprobs=Logprobs(0))
    rig.run()

    assert_prompt_values(rig, request, prompt, 0)
    rig.assert_conserved()


def test_a_waiting_twin_of_two_rows_gets_its_first_token_once() -> None:
    rig = Rig(AMPLE, rows=2, chunk=-1)
    prompt = prompt_of(9, 20)
    rig.send(prompt, 1)
    rig.run()

    several = [rig.send(prompt, new) for new in (3, 3, 3, 1)]
    rig.run()

    # The first two start behind the whole prompt but its last token, so that nobody waits for them.
    assert [rig.cached(request) for request in several] == [19, 19, 20, 20]
    for request, count in zip(several, (3, 3, 3, 1), strict=True):
        assert rig.tokens(request) == expected_output(prompt, count, rig.runner.vocab)
    rig.assert_conserved()
