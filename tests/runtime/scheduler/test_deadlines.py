"""Requests end when their time is over, and nothing of them stays."""

from dataclasses import replace

import pytest

from mem_cache.spec import PoolSizes
from runtime.scheduler.settings import SchedulerSettings
from tests.testing.scheduler_rig import Rig

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)
PROMPT = list(range(30))


def limited(settings: SchedulerSettings) -> SchedulerSettings:
    return replace(settings, queue_timeout_s=1.0, request_timeout_s=5.0)


def turn_for(rig: Rig, seconds: float) -> None:
    """Turn the loop, a tenth of a second each time."""
    for _ in range(round(seconds * 10)):
        rig.scheduler.turn()
        rig.now_s += 0.1


def test_who_finds_no_row_in_time_is_refused_and_may_come_back() -> None:
    rig = Rig(AMPLE, rows=1, adjust=limited)
    running = rig.send(PROMPT, 40)
    turn_for(rig, 0.3)
    late, background = rig.send(PROMPT[:9], 4), rig.send(PROMPT[:8], 4, background=True)
    turn_for(rig, 0.9)
    assert not rig.refusals()

    turn_for(rig, 0.3)

    [refusal] = rig.refusals()
    assert (refusal.request_id, refusal.reason) == (late, "queue_timeout")
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s >= 1
    rig.run()
    assert len(rig.tokens(running)) == 40
    assert len(rig.tokens(background)) == 4
    assert not rig.tokens(late)
    counters = rig.replica.stats.counters
    assert counters["requests"] == counters["finished_requests"] + counters["refused_requests"] == 2
    rig.assert_conserved()


def test_who_lost_its_row_amid_its_prompt_waits_for_another_as_long_as_it_takes() -> None:
    rig = Rig(AMPLE, rows=1, chunk=8, adjust=limited)
    request = rig.send(PROMPT, 4)
    rig.turn_until(lambda: rig.request(request).committed > 0)
    rig.replica._retract(rig.at_rest(request))
    rig.now_s += 1.5

    rig.run()

    assert not rig.refusals()
    assert len(rig.tokens(request)) == 4
    rig.assert_conserved()


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_ends_where_its_time_is_over_and_keeps_its_tokens(stream: bool) -> None:
    rig = Rig(AMPLE, rows=2, adjust=limited)
    long, mine = rig.send(PROMPT, 500, stream=stream), rig.send([1, 2], 500, timeout_s=2.0)
    turn_for(rig, 2.2)

    assert rig.outputs(mine)[-1].finish == "abort"
    assert rig.request(long)
    turn_for(rig, 3.0)
    last = rig.outputs(long)[-1]
    assert (last.finish, last.error) == ("abort", "the request took longer than 5 s")
    assert len(rig.tokens(long)) > 10
    assert not rig.busy
    assert rig.replica.stats.counters["timed_out_requests"] == 2
    rig.assert_conserved()


@pytest.mark.parametrize("waits", [True, False])
def test_a_request_without_a_token_is_refused_when_its_time_is_over(waits: bool) -> None:
    rig = Rig(AMPLE, rows=1, chunk=8)
    other = rig.send([5, 6, 7], 30) if waits else None
    if waits:
        turn_for(rig, 0.2)
    request = rig.send(list(range(40)) * 20, 3, timeout_s=0.5)

    turn_for(rig, 1.0)

    assert [(r.request_id, r.reason) for r in rig.refusals()] == [(request, "timeout")]
    assert not rig.outputs(request)
    rig.run()
    assert other is None or len(rig.tokens(other)) == 30
    rig.assert_conserved()


def test_an_answer_that_is_whole_once_its_step_is_settled_is_not_refused() -> None:
    rig = Rig(AMPLE, overlap=True)
    request = rig.send(PROMPT[:9], 0, timeout_s=0.5)
    rig.scheduler.turn()
    assert rig.request(request).has_chunk_in_flight
    rig.now_s += 1.0
    rig.run()

    assert not rig.refusals()
    assert [item.finish for item in rig.outputs(request)] == ["length"]
    rig.assert_conserved()
