"""The running set: its rows, and what a step feeds and saves."""

import random

import pytest

from mem_cache.spec import PoolSizes
from runtime.executor.step_plan import HeldRow, Phase, StepPlan, StepResult
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=100, swa_pages=100, rings=30)


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(40), k=length)


def decodes(rig: Rig) -> list[StepPlan]:
    return [plan for plan in rig.plans if plan.phase is Phase.DECODE]


def test_a_step_feeds_each_row_its_last_token_at_its_own_position(either_way: bool) -> None:
    rig = Rig(AMPLE, chunk=-1)
    prompts = [prompt_of(1, 5), prompt_of(2, 12)]
    requests = [rig.send(p, 6) for p in prompts]
    rig.run()

    expected = [expected_output(p, 6, 50) for p in prompts]
    for step, plan in enumerate(decodes(rig)):
        known = [0, 0] if either_way else [out[step] for out in expected]
        assert plan.input_ids.tolist() == known
        if either_way:
            assert plan.feed is not None
            assert plan.feed.tolist() == [0, 1]
        else:
            assert plan.feed is None
        assert plan.chunk_start.tolist() == [5 + step, 12 + step]
        assert plan.chunk_len.tolist() == [1, 1]
        assert plan.positions.tolist() == plan.save_position.tolist() == [6 + step, 13 + step]
        assert plan.save_ring.tolist() == plan.ring.tolist()
        assert plan.page_table.shape == (2, (12 + step) // 8 + 1)
    assert len(decodes(rig)) == 5 + either_way
    assert [rig.tokens(r) for r in requests] == expected


def test_rows_leave_and_join_without_disturbing_others() -> None:
    rig = Rig(AMPLE, rows=3)
    news = [3, 9, 5, 7, 1, 4]
    requests = [rig.send(prompt_of(10 + i, 5 + i), new) for i, new in enumerate(news)]
    rig.run()

    for i, (request, new) in enumerate(zip(requests, news, strict=True)):
        assert rig.tokens(request) == expected_output(prompt_of(10 + i, 5 + i), new, 50)
    assert max(len(plan.chunk_len) for plan in decodes(rig)) == 3
    rig.assert_conserved()


def test_sampling_states_are_those_of_the_rows_and_hold_their_output() -> None:
    rig = Rig(AMPLE, chunk=-1)
    requests = [rig.send(prompt_of(20 + i, 6), 8) for i in range(3)]
    rig.turn_until(lambda: all(len(rig.tokens(r)) >= 3 for r in requests))

    plan = rig.plans[-1]

    assert plan.phase is Phase.DECODE
    for state, request in zip(plan.samples, requests, strict=True):
        assert state is rig.request(request).sample
        assert state.output == rig.tokens(request)


def test_a_page_and_a_window_page_are_opened_exactly_when_needed(either_way: bool) -> None:
    rig = Rig(AMPLE, rows=1)
    request = rig.send(prompt_of(30, 6), 20)
    rig.turn_until(lambda: bool(rig.tokens(request)))
    pages: list[tuple[int, int]] = []
    while rig.busy:
        state = rig.request(request)
        pages.append((state.scheduled, state.num_pages))
        rig.scheduler.turn()

    assert pages == [(n, -(-n // 8)) for n in range(6 + either_way, 25 + either_way)]


def test_end_tokens_of_the_model_end_a_request_but_not_before_its_minimum() -> None:
    prompt = prompt_of(70, 9)
    expected = expected_output(prompt, 40, 2)
    rig = Rig(AMPLE, vocab=2, eos=(1,))
    free, least = rig.send(prompt, 40), rig.send(prompt, 40, min_new=7)
    rig.run()

    first = expected.index(1) + 1
    later = 7 + expected[6:].index(1)
    assert rig.tokens(free) == expected[:first]
    assert rig.tokens(least) == expected[:later]
    assert rig.outputs(least)[-1].matched_stop == 1
    rig.assert_conserved()


def test_a_stop_token_that_is_the_last_allowed_one_counts_as_a_stop() -> None:
    prompt = prompt_of(71, 9)
    expected = expected_output(prompt, 4, 50)
    rig = Rig(AMPLE)
    request = rig.send(prompt, 4, stop=(expected[3],), min_new=4)
    rig.run()

    assert rig.tokens(request) == expected
    assert rig.outputs(request)[-1].finish == "stop"


def test_a_held_row_sits_out_until_it_is_resumed_with_its_token() -> None:
    rig = Rig(AMPLE, chunk=-1)
    first, second = rig.send(prompt_of(80, 6), 20), rig.send(prompt_of(81, 9), 20)
    rig.turn_until(lambda: len(rig.tokens(first)) == len(rig.tokens(second)) == 2)
    rig.scheduler._land()
    decoding, request = rig.scheduler.decoding, rig.request(second)
    step = decoding.plan()
    plan, row = step.plan, step.requests.index(request)
    held = HeldRow(None, request.sample, int(plan.positions[row]))

    step.held = {row: held}
    decoding.hold(step)
    decoding.settled(step, StepResult([11, 0], [None, None], [None, None], []))
    assert decoding.active == [rig.request(first)]
    assert decoding.due == []
    request.committed += 1  # which the rest of settling does
    assert decoding.due == [request]
    between = decoding.plan()
    assert between.plan.input_ids.tolist() == [11]

    decoding.settled(between, StepResult([13], [None], [None], []))
    decoding.resume(request, 12)
    again = decoding.plan().plan
    assert again.input_ids.tolist() == [13, 12]
    assert again.chunk_start.tolist() == [
        int(start) + k for start, k in zip(plan.chunk_start, (2, 1), strict=True)
    ]
    assert decoding.due == []


def test_a_row_that_leaves_is_held_no_more() -> None:
    rig = Rig(AMPLE)
    request_id = rig.send(prompt_of(82, 6), 20)
    rig.turn_until(lambda: len(rig.tokens(request_id)) == 2)
    request = rig.request(request_id)
    request.held = HeldRow(None, request.sample, request.total)

    rig.scheduler.decoding.remove(request)

    assert request.held is None
