"""Past a tombstone a request computes at most the replay length again, and gets what is right.

The runner stores nothing true in windows and rings until a replay has run its length, so that a
resume point taken too early, a record written too early or a start too late is a fault.
"""

import random

import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.messages import Abort, Logprobs
from runtime.scheduler.resume_policy import ResumePolicy
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

pytestmark = pytest.mark.usefixtures("either_way")

SPEC = TreeSpec(page_size=8, swa_page_size=4, window=8)
AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)
REPLAY = 24


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(50), k=length)


def forget_points(rig: Rig) -> None:
    """Make every node a tombstone."""
    rig.residency.cache.evict_swa(states=rig.residency.states.capacity)
    assert rig.residency.cache.points == 0


@pytest.mark.parametrize("chunk", [1, 5, 16, -1])
@pytest.mark.parametrize("shared", [25, 64, 67, 100])
def test_a_request_past_a_tombstone_computes_only_the_tail(
    chunk: int, shared: int, either_way: bool
) -> None:
    rig = Rig(AMPLE, spec=SPEC, chunk=chunk, replay=REPLAY)
    history = prompt_of(shared, shared)
    rig.send([*history, 1, 2], 3)
    rig.run()
    forget_points(rig)
    before = rig.runner.computed_tokens

    prompt = [*history, 7, 8, 9]
    request = rig.send(prompt, 4)
    rig.run()

    assert rig.tokens(request) == expected_output(prompt, 4, 50)
    assert rig.cached(request) == shared - REPLAY
    assert rig.runner.computed_tokens - before == REPLAY + 3 + 3 + either_way
    rig.assert_conserved()


def test_points_every_so_many_pages_stand_behind_what_was_replayed() -> None:
    rig = Rig(AMPLE, spec=SPEC, replay=REPLAY, resume=ResumePolicy(every_pages=2))
    history = prompt_of(1, 100)
    rig.send(history, 0)
    rig.run()
    positions = rig.residency.cache.arrays.point("position")
    assert sorted(positions[positions > 0].tolist()) == [16, 32, 48, 64, 80, 96, 100]
    forget_points(rig)

    prompt = [*history, *prompt_of(2, 30)]
    request = rig.send(prompt, 0)
    rig.run()

    assert rig.cached(request) == 100 - REPLAY
    assert sorted(positions[positions > 0].tolist()) == [112, 128, 130]
    rig.assert_conserved()


def test_a_replay_leaves_a_resume_point_where_the_match_ended() -> None:
    rig = Rig(AMPLE, spec=SPEC, replay=REPLAY)
    rig.residency.policy = type(rig.residency.policy)(branch_min_tokens=8)
    history = prompt_of(1, 90)
    rig.send([*history, 1], 3)
    rig.run()
    forget_points(rig)
    rig.send([*history, 2], 3)
    rig.run()

    third = rig.send([*history, 3, 4], 3)
    rig.run()

    assert rig.cached(third) == 90
    rig.assert_conserved()


@pytest.mark.parametrize(("point", "resumes_at"), [(95, 96), (97, 97), (110, 110), (20, 96)])
def test_whichever_computes_fewer_tokens_is_taken(point: int, resumes_at: int) -> None:
    rig = Rig(AMPLE, spec=SPEC, replay=REPLAY)
    history = prompt_of(3, 120)
    rig.send(history, 0)
    rig.run()
    forget_points(rig)
    rig.send(history[:point], 0)
    rig.run()
    request = rig.send([*history, 5], 2)
    rig.run()

    assert rig.cached(request) == resumes_at
    assert rig.tokens(request) == expected_output([*history, 5], 2, 50)
    rig.assert_conserved()


def test_a_request_aborted_inside_its_replay_leaves_no_point() -> None:
    rig = Rig(AMPLE, spec=SPEC, chunk=5, replay=REPLAY)
    history = prompt_of(4, 80)
    rig.send(history, 0)
    rig.run()
    forget_points(rig)

    request = rig.send([*history, 1], 2)
    rig.scheduler.turn()
    rig.socket.inbox.append(Abort([request]))
    rig.scheduler.turn()

    assert rig.residency.cache.points == 0
    again = rig.send([*history, 1], 2)
    rig.run()
    assert rig.tokens(again) == expected_output([*history, 1], 2, 50)
    rig.assert_conserved()


def test_requests_that_need_the_same_replay_wait_for_one() -> None:
    rig = Rig(AMPLE, spec=TreeSpec(64, 16, 32), rows=8, chunk=40, replay=160)
    history = prompt_of(5, 500)
    rig.send(history, 0)
    rig.run()
    forget_points(rig)
    before = rig.runner.computed_tokens

    requests = [rig.send([*history, i, 1], 1) for i in range(6)]
    rig.run()

    assert rig.runner.computed_tokens - before <= 160 + 6 * 3
    for i, request in enumerate(requests):
        assert rig.tokens(request) == expected_output([*history, i, 1], 1, 50)
    rig.assert_conserved()


def test_prompt_logprobs_after_a_tombstone_are_reported_from_where_they_were_asked() -> None:
    rig = Rig(AMPLE, spec=SPEC, chunk=7, replay=REPLAY)
    prompt = prompt_of(6, 90)
    rig.send(prompt, 0)
    rig.run()
    forget_points(rig)

    request = rig.send(prompt, 1, logprobs=Logprobs(start=60))
    rig.run()

    reported = rig.outputs(request)[0].prompt_logprobs
    assert reported is not None
    assert reported.ids == prompt[60:]
    assert rig.cached(request) == 60 - REPLAY
    rig.assert_conserved()


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40)]


@pytest.mark.parametrize("seed", [*range(4), *SLOW])
def test_random_branches_under_eviction_are_exact(seed: int) -> None:
    rng = random.Random(seed)
    # A window no shorter than a ring's rows, as in the network: both are exact together.
    spec = rng.choice([SPEC, TreeSpec(4, 4, 8), TreeSpec(16, 4, 10)])
    pages = 260 // spec.page_size
    sizes = PoolSizes(pages, 3 * spec.row_swa_pages + rng.randint(0, 9), rng.randint(3, 7))
    replay = spec.window * rng.randint(2, 4)
    rig = Rig(sizes, spec=spec, rows=3, chunk=rng.choice([1, 7, 30, -1]), replay=replay)
    base = prompt_of(seed, 70)
    live: dict[int, tuple[list[int], int]] = {}
    for _ in range(150):
        rig.scheduler.turn()
        for request in [r for r in live if any(o.finish for o in rig.outputs(r))]:
            prompt, new = live.pop(request)
            assert rig.tokens(request) == expected_output(prompt, new, 50)
        if rng.random() < 0.1:
            rig.residency.cache.evict_swa(states=rng.randint(0, rig.residency.states.free + 1))
        if live and rng.random() < 0.05:
            request = rng.choice(list(live))
            rig.socket.inbox.append(Abort([request]))
            del live[request]
        if len(live) < 5 and rng.random() < 0.5:
            prompt = base[: rng.randint(1, 70)] + rng.choices(range(3), k=rng.randint(1, 20))
            new = rng.randint(0, 6)
            live[rig.send(prompt, new)] = (prompt, new)
    rig.run()
    for request, (prompt, new) in live.items():
        assert rig.tokens(request) == expected_output(prompt, new, 50)
    rig.assert_conserved()
