"""The running set: its rows, and what a step feeds and saves."""

import random

import numpy as np
import pytest

from mem_cache.spec import PoolSizes
from runtime.scheduler.step import Step
from tests.testing.plan_arrays import PlanArrays
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=100, swa_pages=100, states=30)


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(40), k=length)


def step_of(rig: Rig) -> Step:
    """Return the next decode step, launched by nobody."""
    rows = rig.replica.sets.decoding.plan()
    count = len(rows.requests)
    plan = rig.replica._builder.build(rows, step=1, decoding=count)
    return Step(rows, plan, told=count, decoding=count)


def decodes(rig: Rig) -> list[PlanArrays]:
    return [plan for plan in rig.plans if plan.decodes]


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
            assert plan.feed.tolist() == [True, True]
        else:
            assert not plan.feed.any()
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


def test_each_row_is_sampled_as_its_own_line_is() -> None:
    rig = Rig(AMPLE, chunk=-1)
    requests = [rig.send(prompt_of(20 + i, 6), 8) for i in range(3)]
    rig.turn_until(lambda: all(len(rig.tokens(r)) >= 3 for r in requests))

    plan = rig.plans[-1]

    assert plan.decodes
    assert plan.sampled_line.tolist() == [rig.request(request).row for request in requests]


def test_a_page_and_a_window_page_are_opened_exactly_when_needed(either_way: bool) -> None:
    rig = Rig(AMPLE, rows=1)
    request = rig.send(prompt_of(30, 6), 20)
    rig.turn_until(lambda: bool(rig.tokens(request)))
    pages: list[tuple[int, int]] = []
    while rig.busy:
        state = rig.request(request)
        pages.append((state.scheduled, state.holding.num_pages))
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
    rig.replica.settle_in_flight()
    decoding, request = rig.replica.sets.decoding, rig.request(second)
    step = step_of(rig)

    decoding.hold(step, [request])
    assert step.held == {step.requests.index(request)}
    decoding.settled(step, np.array([1, 0]), np.array([11]))
    assert decoding.active == [rig.request(first)]
    assert decoding.due == []
    request.committed += 1  # which the rest of settling does
    assert decoding.due == [request]
    between = step_of(rig)
    assert between.rows.ids.tolist() == [11]

    decoding.settled(between, np.array([1]), np.array([13]))
    decoding.resume(request, 12)
    again = decoding.plan()
    assert again.ids.tolist() == [13, 12]
    assert again.start.tolist() == [
        int(start) + k for start, k in zip(step.rows.start, (2, 1), strict=True)
    ]
    assert decoding.due == []


def test_a_row_that_leaves_is_held_no_more() -> None:
    rig = Rig(AMPLE)
    request_id = rig.send(prompt_of(82, 6), 20)
    rig.turn_until(lambda: len(rig.tokens(request_id)) == 2)
    request = rig.request(request_id)
    request.held = True

    rig.replica.sets.decoding.remove(request)

    assert not request.held
