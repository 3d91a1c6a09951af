"""Several replicas under one loop: joint steps, the same answers, nothing lost."""

import random
from dataclasses import replace

import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.cache_messages import CacheView, GetCache
from runtime.messages import Flush, Flushed
from runtime.profile_messages import StartProfile, StopProfile
from runtime.scheduler.integrity import QUIET_S
from runtime.scheduler.request import Status
from runtime.scheduler.settings import SchedulerSettings
from tests.runtime.scheduler.test_loop import prompt_of
from tests.testing.joint_rig import JointRig
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)
TIGHT = PoolSizes(full_pages=14, swa_pages=40, states=8)


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
@pytest.mark.parametrize("count", [2, 4])
def test_answers_are_those_of_one_replica(count: int, overlap: bool) -> None:
    joint, solo = JointRig(AMPLE, count, overlap=overlap), Rig(AMPLE, overlap=overlap)
    draw = random.Random(count)
    asked: list[tuple[int, int, list[int], int]] = []
    for _ in range(3):
        for _ in range(12):
            prompt = prompt_of(draw.randrange(4), 20) + prompt_of(draw.randrange(9), 7)
            new = draw.randrange(1, 9)
            asked.append((joint.send(prompt, new), solo.send(prompt, new), prompt, new))
        joint.run()
        solo.run()

    for mine, others, prompt, new in asked:
        assert joint.tokens(mine) == solo.tokens(others) == expected_output(prompt, new, 50)
    joint.assert_conserved()


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
def test_nothing_is_lost_by_aborts_and_retractions(overlap: bool) -> None:
    rig = JointRig(TIGHT, 2, overlap=overlap)
    draw = random.Random(7)
    expected: dict[int, list[int]] = {}
    for round_ in range(60):
        prompt = prompt_of(draw.randrange(100), draw.randrange(1, 40))
        new = draw.randrange(1, 40)
        expected[rig.send(prompt, new)] = expected_output(prompt, new, 50)
        if round_ % 5 == 4:
            gone = draw.choice(list(expected))
            del expected[gone]
            rig.abort(gone)
        for _ in range(draw.randrange(6)):
            rig.scheduler.turn()
    rig.run()

    assert {request: rig.tokens(request) for request in expected} == expected
    counters = rig.scheduler.state().counters
    assert counters["retracted_requests"] > 0
    assert counters["finished_requests"] + counters["aborted_requests"] == counters["requests"]
    rig.assert_conserved()


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
def test_an_idle_replica_takes_part_in_each_step(overlap: bool) -> None:
    rig = JointRig(AMPLE, 4, overlap=overlap)
    rig.send(prompt_of(1, 30), 6)
    rig.run()

    assert len(rig.executor.steps) >= 7
    assert all(step == [True, False, False, False] for step in rig.executor.steps)
    launched = len(rig.executor.steps)
    rig.scheduler.turn()
    assert len(rig.executor.steps) == launched


def test_replicas_that_come_in_between_take_part_under_the_same_numbers() -> None:
    rig = JointRig(AMPLE, 2, overlap=True)
    first = rig.send(prompt_of(1, 30), 20)
    rig.turn_until(lambda: len(rig.executor.steps) == 4)
    second = rig.send(prompt_of(2, 30), 3)
    rig.run()

    assert [True, True] in rig.executor.steps
    assert rig.executor.steps[-1] == [True, False]
    assert rig.tokens(first) == expected_output(prompt_of(1, 30), 20, 50)
    assert rig.tokens(second) == expected_output(prompt_of(2, 30), 3, 50)


def test_replicas_compute_chunks_in_the_same_steps() -> None:
    rig = JointRig(AMPLE, 2, rows=2, overlap=True)
    for seed in (1, 2):
        rig.send(prompt_of(seed, 9), 60)
    rig.turn_until(lambda: all(len(r.sets.decoding) == 1 for r in rig.replicas))
    rig.send(prompt_of(3, 90), 4)
    rig.scheduler.turn()
    rig.send(prompt_of(4, 150), 4)
    rig.turn_until(lambda: all(r.sets.prefills for r in rig.replicas))
    first = len(rig.executor.plans)
    rig.turn_until(lambda: not all(r.sets.prefills for r in rig.replicas))

    plans = rig.executor.plans[first:]
    chunks = [tuple(len(plan.rows.ids) > 8 for plan in step if plan is not None) for step in plans]
    assert len(chunks) > 6
    assert set(chunks[:-2]) == {(True, True), (False, False)}


def test_a_flush_waits_for_all_replicas_and_empties_each() -> None:
    rig = JointRig(AMPLE, 2)
    rig.send(prompt_of(1, 30), 2)
    rig.send(prompt_of(2, 30), 12)
    rig.turn_until(lambda: len(rig.replicas[0].sets.by_id) == 0)
    rig.socket.inbox.append(Flush(1))
    rig.run()
    assert all(replica.residency.cache.tree_pages for replica in rig.replicas)
    rig.socket.inbox.append(Flush(2))
    rig.run()

    flushed = [m for m in rig.socket.outbox if isinstance(m, Flushed)]
    assert [(m.call_id, m.done) for m in flushed] == [(1, False), (2, True)]
    assert not any(replica.residency.cache.tree_pages for replica in rig.replicas)


def test_the_cache_is_seen_by_replica() -> None:
    rig = JointRig(AMPLE, 2)
    rig.ask(prompt_of(1, 30))
    rig.socket.inbox += [GetCache(5, 10, replica=k) for k in (0, 1)]
    rig.scheduler.turn()

    views = [m for m in rig.socket.outbox if isinstance(m, CacheView)]
    assert [bool(view.spans) for view in views] == [True, False]


def test_profiles_are_of_all_replicas() -> None:
    rig = JointRig(AMPLE, 2)
    rig.socket.inbox += [StartProfile(1), StopProfile(2)]
    rig.scheduler.turn()

    assert rig.profiles.commands == [StartProfile(1), StopProfile(2)]


def test_the_queue_is_full_when_that_of_all_replicas_is() -> None:
    rig = JointRig(AMPLE, 2, rows=1, max_queued=2)
    for seed in range(6):
        rig.send(prompt_of(seed, 9), 4)
    rig.run()

    assert [refused.request_id for refused in rig.refusals()] == [5, 6]
    rig.assert_conserved()


def test_the_same_id_is_refused_wherever_it_runs() -> None:
    rig = JointRig(AMPLE, 2)
    rig.send(prompt_of(1, 9), 4)
    rig.send(prompt_of(2, 9), 4)
    rig.socket.inbox += rig.socket.inbox
    rig.run()

    assert [refused.reason for refused in rig.refusals()] == ["bad_request"] * 2


def test_all_replicas_are_verified_once_none_has_work(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = JointRig(AMPLE, 2, check=False)
    for seed in (1, 2):
        rig.send(prompt_of(seed, 30), 3)
    rig.run()
    verified: list[int] = []
    for k, replica in enumerate(rig.replicas):
        cache = replica.residency.cache
        monkeypatch.setattr(cache, "check_in_steps", lambda k=k, **_: iter([verified.append(k)]))
    rig.scheduler.turn()
    assert verified == []
    rig.now_s += QUIET_S
    for _ in range(3):
        rig.scheduler.turn()

    assert verified == [0, 1]


def test_queue_and_planner_are_as_the_settings_say() -> None:
    def adjusted(settings: SchedulerSettings) -> SchedulerSettings:
        return replace(
            settings,
            schedule_policy="fcfs",
            priority_aging_s=3.0,
            max_queued_requests=7,
            chunked_prefill_size=11,
            max_logit_rows=12,
            step_context=13,
            step_samples=14,
        )

    replica = Rig(AMPLE, adjust=adjusted).replica
    queue, planner = replica.sets.waiting, replica._planning._planner
    assert (queue.policy, queue._aging_s, queue._most_passed) == ("fcfs", 3.0, 7)
    assert (planner._chunk_tokens, planner._logit_rows) == (11, 12)
    assert (planner._context, planner._samples) == (13, 14)


def test_a_prompt_that_is_computed_is_waited_for_no_more() -> None:
    rig = Rig(AMPLE, spec=TreeSpec(64, 16, 32), rows=2, chunk=50)
    shared = prompt_of(10, 128)
    first = rig.send([*shared, *prompt_of(11, 30)], 30)
    second = rig.send([*shared, 44, *prompt_of(12, 30)], 2)
    rig.scheduler.turn()
    assert rig.replica.awaits_prefix(rig.request(second))
    rig.send(prompt_of(13, 20), 60, priority=1)
    rig.turn_until(lambda: rig.request(first).status is Status.DECODE)

    assert rig.request(second).status is Status.WAITING
    assert not rig.replica.awaits_prefix(rig.request(second))
