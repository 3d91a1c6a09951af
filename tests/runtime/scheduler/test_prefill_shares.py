"""A short prompt does not wait for a long one, and a long one is never starved by short ones."""

import random
from collections.abc import Iterator

import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.messages import Generate, Logprobs, Sampling, pack_ids
from runtime.scheduler.prefill_shares import even_budget, logits_wanted, share_out
from runtime.scheduler.request import Request, Status
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

AMPLE = PoolSizes(full_pages=400, swa_pages=400, states=80)
# Small pages, so that prompts of a few hundred tokens have many.
SPEC = TreeSpec(8, 4, 8)


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(40), k=length)


def admitted(
    length: int, *, ident: int, priority: int = 0, done: int = 0, logprobs: int | None = None
) -> Request:
    """Return a request that is being prefilled and stands at `done`."""
    asked = None if logprobs is None else Logprobs(logprobs)
    prompt = prompt_of(ident, length)
    sampling = Sampling(max_new_tokens=1, seed=0)
    message = Generate(ident, pack_ids(prompt), sampling, logprobs=asked, priority=priority)
    request = Request(message, (), float(ident))
    request.target, request.scheduled = length, done
    return request


def shares(*requests: Request, tokens: int = 100, logit_rows: int = 1000) -> list[tuple[int, int]]:
    """Return the tokens that each one gets, by id."""
    out = share_out(requests, tokens=tokens, logit_rows=logit_rows)
    return [(request.id, end - request.scheduled) for request, end in out]


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ([40], 40),
        ([500], 100),
        ([10] * 10, 100),
        ([10] * 12, 60),
        ([10] * 21, 70),
        ([9] * 12, 54),
        ([30, 80], 30),
        ([500, 10, 10], 100),
        ([60, 60], 60),
        ([60, 100], 60),
        ([50, 51], 50),
        ([30, 71], 30),
        ([20, 81], 100),
        ([98, 99], 98),
        ([40, 90, 95], 40),
        ([40, 99, 99, 62], 100),
        ([99, 2], 100),
        ([1], 1),
    ],
)
def test_steps_of_what_is_left_are_about_as_long_and_of_whole_prompts(
    left: list[int], expected: int
) -> None:
    prefills = [admitted(7 + n, ident=k, done=7) for k, n in enumerate(left)]

    assert even_budget(prefills, 100) == expected


def test_half_of_many_short_prompts_are_served_before_the_last_step() -> None:
    rig = Rig(AMPLE, spec=SPEC, rows=30, chunk=100)
    for seed in range(21):
        rig.send(prompt_of(seed, 10), 1)
    rig.run()

    steps = [p for p in rig.plans if not p.decodes]
    assert [len(p.input_ids) for p in steps] == [70, 70, 70]


def test_one_alone_gets_everything() -> None:
    assert shares(admitted(500, ident=1)) == [(1, 100)]


def test_the_oldest_keeps_half_and_the_shortest_come_first() -> None:
    old, long = admitted(500, ident=1), admitted(400, ident=2)
    short, shorter = admitted(40, ident=3), admitted(30, ident=4)

    assert shares(old, long, short, shorter) == [(1, 50), (3, 20), (4, 30)]
    assert shares(old, long, shorter) == [(1, 50), (2, 20), (4, 30)]


def test_the_oldest_keeps_half_whoever_waits_for_a_part_of_it() -> None:
    old = admitted(500, ident=1)
    old.awaited_at = 20
    short = [admitted(9, ident=ident) for ident in range(2, 12)]

    assert shares(old, *short)[0] == (1, 50)


def test_what_the_short_ones_leave_is_the_oldests_again() -> None:
    assert shares(admitted(500, ident=1), admitted(10, ident=2)) == [(1, 90), (2, 10)]


def test_an_oldest_that_is_short_is_done_in_its_turn() -> None:
    old, long = admitted(60, ident=1), admitted(400, ident=2)

    assert shares(old, long) == [(1, 60), (2, 40)]


def test_what_is_left_counts_and_not_the_length() -> None:
    old, far, near = (admitted(500, ident=i, done=done) for i, done in ((1, 0), (2, 300), (3, 480)))

    assert shares(old, far, near) == [(1, 50), (2, 30), (3, 20)]


def test_a_budget_of_one_goes_to_the_oldest() -> None:
    assert shares(admitted(9, ident=1), admitted(1, ident=2), tokens=1) == [(1, 1)]


def test_the_more_urgent_go_first_and_leave_the_rest() -> None:
    old, urgent = admitted(500, ident=1), admitted(70, ident=2, priority=1)
    also = admitted(20, ident=3, priority=1)

    assert shares(old, urgent, also) == [(1, 10), (2, 70), (3, 20)]
    assert shares(old, admitted(300, ident=4, priority=1)) == [(4, 100)]


def test_a_prompt_is_as_urgent_as_whoever_waits_for_it() -> None:
    old, prefix = admitted(500, ident=1), admitted(500, ident=2)
    waiter = admitted(80, ident=3, priority=1)
    prefix.await_by(waiter, 64)

    assert shares(old, prefix) == [(2, 100)]
    prefix.await_nobody()
    assert shares(old, prefix) == [(1, 100)]


def test_the_way_to_where_somebody_waits_is_short() -> None:
    old, prefix, other = (admitted(n, ident=i) for i, n in ((1, 500), (2, 400), (3, 60)))
    prefix.await_by(admitted(50, ident=4), 24)

    assert shares(old, prefix, other) == [(1, 50), (2, 24), (3, 26)]
    prefix.scheduled = 24
    assert shares(old, prefix, other) == [(1, 50), (3, 50)]


def test_rows_of_logits_are_shared_like_tokens() -> None:
    old, short = admitted(500, ident=1, logprobs=0), admitted(30, ident=2, logprobs=0)
    free = admitted(40, ident=3)

    assert shares(old, short, logit_rows=20) == [(1, 10), (2, 10)]
    assert shares(old, free, logit_rows=20) == [(1, 20), (3, 40)]
    assert shares(old, short, logit_rows=1) == [(1, 1)]


def test_the_end_of_a_prompt_has_no_value_to_tell_and_costs_no_row_of_logits() -> None:
    request = admitted(20, ident=1, logprobs=0)

    assert shares(request, logit_rows=19) == [(1, 20)]
    assert shares(request, logit_rows=18) == [(1, 18)]


def generated(pick: random.Random) -> Iterator[Request]:
    for ident in range(1, pick.randrange(2, 9)):
        length = pick.randrange(1, 300)
        asked = pick.choice([None, pick.randrange(length)])
        yield admitted(length, ident=ident, priority=pick.randrange(2), logprobs=asked)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_the_step_is_full_and_the_oldest_of_the_most_urgent_moves_on(
    seed: int,
) -> None:
    pick = random.Random(seed)
    requests = list(generated(pick))
    tokens, rows = pick.randrange(1, 400), pick.randrange(1, 100)

    out = share_out(requests, tokens=tokens, logit_rows=rows)

    taken = sum(end - r.scheduled for r, end in out)
    wanted = sum(logits_wanted(r, r.scheduled, end) for r, end in out)
    assert taken <= tokens
    assert wanted <= rows
    assert all(r.scheduled < end <= r.target for r, end in out)
    # Tokens are left over only where no row of logits is, or nothing to compute.
    if wanted < rows:
        assert taken == min(tokens, sum(r.target for r in requests))
    urgent = [r for r in requests if r.priority == max(r.priority for r in requests)]
    if all(r.logprob_next is None for r in requests):
        ends = dict(out)
        least = min(urgent[0].target, -(-tokens // 2))
        assert ends[urgent[0]] >= least


def first_token_after(rig: Rig, request: int, *, turns: int = 200) -> int:
    """Turn until a request's first token; return how many prefill steps that took."""
    before = len(rig.plans)
    rig.turn_until(lambda: bool(rig.tokens(request)), turns)
    return sum(not plan.decodes for plan in rig.plans[before:])


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
def test_a_short_prompt_waits_for_a_step_and_not_for_a_long_prompt(policy: str) -> None:
    rig = Rig(AMPLE, spec=SPEC, chunk=32, policy=policy)
    long, short = prompt_of(1, 1600), prompt_of(2, 12)
    first = rig.send(long, 2)
    rig.scheduler.turn()

    for turn in range(5):
        second = rig.send(short, 2, namespace=str(turn))
        assert first_token_after(rig, second) == 1
    assert rig.request(first).status is Status.PREFILL
    rig.run()

    assert rig.tokens(first) == expected_output(long, 2, 50)
    rig.assert_conserved()


def test_short_prompts_without_end_cost_a_long_one_half_of_its_speed_at_most() -> None:
    rig = Rig(AMPLE, spec=SPEC, chunk=32)
    long = prompt_of(3, 640)
    first, sent = rig.send(long, 1), 0
    rig.scheduler.turn()
    while not rig.tokens(first):
        if len(rig.replica.sets.prefills) < 3:
            sent += 1
            rig.send(prompt_of(100 + sent, 16), 1)
        rig.scheduler.turn()

    steps = [p for p in rig.plans if not p.decodes]
    assert len(steps) <= 2 * 640 // 32
    assert sent >= 15
    rig.run()
    assert rig.tokens(first) == expected_output(long, 1, 50)


def test_whoever_waits_for_the_beginning_of_a_prompt_does_not_wait_for_the_oldest() -> None:
    """The prompt whose beginning it shares is neither the oldest nor short."""
    rig = Rig(AMPLE, spec=SPEC, chunk=32)
    shared = prompt_of(4, 70)
    rig.send(prompt_of(5, 1000), 1)
    rig.scheduler.turn()
    rig.send([*shared, *prompt_of(6, 900)], 1)
    rig.send(prompt_of(7, 1100), 1)
    rig.scheduler.turn()
    waiter = rig.send([*shared, 41, 42], 2)
    rig.scheduler.turn()
    assert rig.request(waiter).status is Status.WAITING

    assert first_token_after(rig, waiter) <= 6
    assert rig.cached(waiter) == 70
    rig.run()
    rig.assert_conserved()


def test_a_prompt_that_somebody_urgent_waits_for_goes_first_until_that_one_starts() -> None:
    rig = Rig(AMPLE, spec=SPEC, chunk=32)
    shared = prompt_of(8, 300)
    prefix = rig.send([*shared, *prompt_of(9, 300)], 1)
    rig.send(prompt_of(10, 2000), 1, priority=3)
    rig.turn_until(lambda: len(rig.replica.sets.prefills) == 2, 1)
    urgent = rig.send([*shared, 41], 1, priority=5)
    rig.scheduler.turn()
    assert rig.request(prefix).urgency == 5

    rig.turn_until(lambda: bool(rig.tokens(urgent)))

    assert rig.cached(urgent) == 300
    assert rig.request(prefix).urgency == 0
    assert rig.request(prefix).status is Status.PREFILL
    rig.run()
    rig.assert_conserved()


def test_who_asked_to_wait_and_left_leaves_no_urgency_behind() -> None:
    rig = Rig(AMPLE, spec=SPEC, chunk=32)
    shared = prompt_of(11, 300)
    prefix = rig.send([*shared, 1], 1)
    rig.scheduler.turn()
    urgent = rig.send([*shared, 2], 1, priority=5)
    rig.scheduler.turn()
    assert rig.request(prefix).urgency == 5

    rig.abort(urgent)
    rig.scheduler.turn()

    assert rig.request(prefix).urgency == 0
    assert rig.request(prefix).awaited_at is None
