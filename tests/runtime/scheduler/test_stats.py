"""Counters, gauges and log lines say what happened."""

import logging
import random
import re

import pytest

from mem_cache.spec import PoolSizes
from runtime.grammar.output import GrammarOutput
from runtime.messages import GetState, Grammar, Logprobs, State
from runtime.scheduler.resume_policy import ResumePolicy
from runtime.scheduler.stats import COUNTERS, Stats
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.scheduler_rig import Rig

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=50, swa_pages=60, states=20)
PROMPT = list(range(20))


def numbers(caplog: pytest.LogCaptureFixture, start: str) -> list[dict[str, float]]:
    """Return the name: value pairs of every log line that begins so."""
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith(start)]
    return [{k: float(v) for k, v in re.findall(r"([#\w/() -]+): ([\d.]+)", li)} for li in lines]


def test_counters_add_up_over_requests_hits_refusals_and_aborts() -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT, 5)
    rig.run()
    rig.send(PROMPT, 3)
    rig.send([], 3)
    gone = rig.send([9, 9], 100)
    for _ in range(4):
        rig.scheduler.turn()
    rig.abort(gone, 999)
    rig.run()

    counters = rig.replica.stats.counters
    assert counters["requests"] == 4
    assert counters["refused_requests"] == 1
    assert counters["finished_requests"] == 2
    assert counters["aborted_requests"] == 1
    assert counters["failed_requests"] == counters["retracted_requests"] == 0
    assert counters["prompt_tokens"] == 42
    assert counters["cached_tokens"] == 19
    assert counters["computed_prompt_tokens"] == 20 + 1 + 2
    assert counters["generation_tokens"] == 8 + len(rig.tokens(gone))
    assert counters["prefill_steps"] + counters["decode_steps"] == rig.runner.steps
    assert rig.replica.stats.gauges["cache_hit_rate"] == pytest.approx(19 / 42)


def test_prompt_tokens_that_did_not_come_from_the_cache_are_counted_by_cause() -> None:
    rig = Rig(AMPLE, resume=ResumePolicy(page_end=False, request_end=False))
    counters = rig.replica.stats.counters
    causes = ("no_point", "point_evicted", "page_evicted", "never_seen")

    def added(prompt: list[int]) -> list[int]:
        before = [counters[f"{cause}_tokens"] for cause in causes]
        rig.send(prompt, 1)
        rig.run()
        rig.replica.stats.update(running=0, waiting=0)
        told = zip(causes, before, strict=True)
        return [int(counters[f"{cause}_tokens"] - was) for cause, was in told]

    assert added(PROMPT) == [0, 0, 0, 20]
    assert added([*PROMPT[:18], 45]) == [18, 0, 0, 1]
    rig.residency.cache.evict_swa(states=AMPLE.states)
    assert added([*PROMPT, 45]) == [0, 20, 0, 1]
    rig.residency.cache.evict_full(AMPLE.full_pages)
    # Whole pages are known again, the partial one is not.
    assert added(PROMPT) == [0, 0, 16, 4]
    assert counters["replayed_tokens"] + counters["recomputed_tokens"] == 38
    rig.residency.cache.evict_full(AMPLE.full_pages)
    assert added(PROMPT[:12]) == [0, 0, 8, 4]
    # All of its second page is known again, of which half has counted as new.
    assert added(PROMPT[:16])[2:] == [8, 0]


def test_what_came_from_the_cache_counts_once_for_all_chunks() -> None:
    rig = Rig(AMPLE, chunk=8)
    rig.send(PROMPT, 1)
    rig.run()
    request = rig.send([*PROMPT, *PROMPT], 1)
    rig.run()

    assert rig.replica.stats.counters["cached_tokens"] == rig.cached(request) > 0


def test_background_work_changes_no_hit_rate_but_counts_as_computed() -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT, 0, background=True)
    rig.run()
    rig.send(PROMPT, 0, background=True)
    rig.run()
    assert rig.replica.stats.gauges["cache_hit_rate"] == 0.0
    rig.send([*PROMPT, 7], 1)
    rig.run()

    counters = rig.replica.stats.counters
    assert (counters["requests"], counters["finished_requests"]) == (1, 1)
    assert (counters["background_requests"], counters["background_prompt_tokens"]) == (2, 40)
    assert (counters["prompt_tokens"], counters["cached_tokens"]) == (21, 20)
    assert counters["computed_prompt_tokens"] == 20 + 1 + 1
    assert rig.replica.stats.gauges["cache_hit_rate"] == pytest.approx(20 / 21)


def test_tokens_of_background_work_are_nobodys() -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT, 2, background=True)
    rig.run()

    assert rig.replica.stats.counters["generation_tokens"] == 0


def test_the_state_tells_how_long_evictions_took() -> None:
    rig = Rig(PoolSizes(full_pages=6, swa_pages=60, states=20))
    for start in range(4):
        rig.send([start, *range(30)], 1)
        rig.run()

    told = rig.scheduler.state().durations
    assert list(told) == ["eviction"]
    assert sum(told["eviction"].counts) >= 3
    assert 0 < told["eviction"].sum_s < 60


def test_the_gauge_of_those_that_wait_for_a_grammar_follows_them() -> None:
    grammars = FakeGrammars(50)
    rig = Rig(AMPLE, grammars=grammars)
    for start in range(2):
        rig.send([start, 1, 2], 2, grammar=Grammar("regex", "x"))
    rig.send([5, 1, 2], 2)
    rig.scheduler.turn()
    assert rig.replica.stats.gauges["compiling"] == 2

    grammars.instant = True
    rig.run()
    assert rig.replica.stats.gauges["compiling"] == 0


def test_gauges_follow_the_pools() -> None:
    rig = Rig(AMPLE, rows=1)
    rig.send(PROMPT, 9)
    rig.send([7, 7], 1)
    rig.scheduler.turn()

    rig.scheduler.turn()
    rig.scheduler.turn()
    gauges = rig.replica.stats.gauges
    assert (gauges["running"], gauges["waiting"]) == (1, 1)
    assert gauges["full_pages_free"] == rig.residency.full.free == 47
    assert gauges["full_usage"] == pytest.approx(3 / 50)
    assert gauges["used_tokens"] == 24
    assert gauges["ring_usage"] == pytest.approx(1 / 20)
    in_use = 60 - gauges["swa_pages_free"] - gauges["swa_pages_evictable"]
    assert gauges["swa_usage"] == pytest.approx(in_use / 60)
    assert in_use == rig.residency.spec.window_pages

    rig.run()
    gauges = rig.replica.stats.gauges
    assert (gauges["running"], gauges["waiting"]) == (0, 0)
    assert gauges["tree_pages"] + gauges["full_pages_free"] == 50
    assert gauges["resume_points"] == rig.residency.cache.points > 0
    assert gauges["rings_evictable"] == gauges["resume_points"]
    assert gauges["swa_pages_evictable"] + gauges["swa_pages_free"] == 60
    assert gauges["full_usage"] == gauges["swa_usage"] == gauges["ring_usage"] == 0


class LateGrammars(FakeGrammars):
    """Grammars whose masks come at any poll."""

    draw = random.Random(3)

    def poll(self, timeout_s: float = 0.0) -> list[GrammarOutput]:
        """Bring all masks, or none."""
        self.instant = self.draw.random() < 0.3
        return super().poll(timeout_s)


def test_after_each_turn_the_gauges_are_those_that_an_update_would_make() -> None:
    draw = random.Random(1)
    sizes = PoolSizes(full_pages=14, swa_pages=60, states=20)
    rig = Rig(sizes, rows=3, grammars=LateGrammars(50), overlap=True)
    scheduler, replica = rig.scheduler, rig.replica
    for _ in range(400):
        if len(replica.sets.waiting) < 4:
            prompt = draw.choices(range(50), k=draw.randint(1, 20))
            grammar = Grammar("regex", "x") if draw.random() < 0.5 else None
            values = Logprobs(0) if draw.random() < 0.2 else None
            rig.send(prompt, draw.randint(0, 12), grammar=grammar, logprobs=values, min_new=9)
        scheduler.turn()
        seen = replica.stats.gauges

        replica.stats.update(
            running=len(replica.sets.prefills) + len(replica.sets.decoding),
            waiting=len(replica.sets.waiting),
            compiling=sum(not request.is_ready for request in replica.sets.waiting),
            waiting_uncached_tokens=replica.sets.waiting_uncached_tokens,
            queued_tokens=replica.sets.waiting.uncached_tokens,
        )
        assert seen == replica.stats.gauges


def test_pages_that_a_running_request_has_locked_are_not_evictable() -> None:
    rig = Rig(AMPLE)
    rig.send(PROMPT, 1)
    rig.run()
    assert rig.residency.cache.evictable_pages == rig.residency.cache.tree_pages
    again = rig.send(PROMPT, 30)
    rig.turn_until(lambda: bool(rig.tokens(again)))

    assert rig.residency.cache.evictable_pages == rig.residency.cache.tree_pages - 3


def test_each_prefill_step_logs_its_tokens_and_what_came_from_the_cache(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(AMPLE, chunk=16)
    with caplog.at_level(logging.INFO, "umbra.scheduler"):
        rig.send(PROMPT, 0)
        rig.run()
        rig.send([*PROMPT, *range(18)], 1)
        rig.run()

    lines = numbers(caplog, "Prefill batch")
    assert [li[" #new-token"] for li in lines] == [16, 4, 16, 2]
    assert [li[" #cached-token"] for li in lines] == [0, 0, 20, 0]
    assert [li[" #pending-token"] for li in lines] == [4, 0, 2, 0]


def test_decode_steps_log_every_so_many_with_their_throughput(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(AMPLE)
    now = [0.0]
    stats = Stats(rig.residency, lambda: now[0], decode_log_interval=4)
    with caplog.at_level(logging.INFO, "umbra.scheduler"):
        for _ in range(9):
            now[0] += 0.5
            stats.decode_step(3)

    lines = numbers(caplog, "Decode batch")
    assert [li[" gen throughput (token/s)"] for li in lines] == [6.0, 6.0]
    assert stats.counters["decode_steps"] == 9
    stats.update(running=3, waiting=0)
    assert stats.gauges["gen_throughput"] == pytest.approx(6.0)


def test_throughput_is_of_the_time_in_which_something_runs() -> None:
    now = [0.0]
    stats = Stats(Rig(AMPLE).residency, lambda: now[0], decode_log_interval=4)

    def decode(steps: int) -> None:
        for _ in range(steps):
            now[0] += 0.5
            stats.decode_step(3)
            stats.update(running=3, waiting=0)

    def idle() -> None:
        for _ in range(100):
            stats.update(running=0, waiting=0)
            now[0] += 1.0

    idle()
    stats.update(running=3, waiting=0)  # their prompts were computed
    decode(4)
    assert stats.gauges["gen_throughput"] == pytest.approx(6.0)
    decode(2)
    idle()
    assert stats.gauges["gen_throughput"] == 0.0
    stats.update(running=3, waiting=0)
    decode(2)
    assert stats.gauges["gen_throughput"] == pytest.approx(6.0)


def test_state_is_answered_with_a_copy_of_everything() -> None:
    rig = Rig(AMPLE)
    rig.socket.inbox.append(GetState(5))
    rig.scheduler.turn()

    (state,) = [m for m in rig.socket.outbox if isinstance(m, State)]
    assert state.call_id == 5
    assert set(COUNTERS) <= set(state.counters)
    assert state.step_age_s == 0.0
    assert state.loop_age_s > 0.0
    rig.send(PROMPT, 1)
    rig.run()
    assert state.counters["requests"] == 0
