"""Who starts when: rooms, prefixes in the making, priorities; nobody waits for ever."""

import random
from typing import Literal

import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.scheduler.request import Request, Status
from runtime.scheduler.resume_policy import ResumePolicy
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)
LARGE = TreeSpec(64, 16, 32)


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(40), k=length)


def first_steps(rig: Rig, requests: list[int]) -> list[int]:
    """Run everything; return the requests in the order of their first tokens."""
    seen: list[int] = []
    while rig.busy:
        rig.scheduler.turn()
        seen += [r for r in requests if r not in seen and rig.tokens(r)]
    return seen


@pytest.mark.parametrize("count", [2, 9])
def test_equal_prompts_at_once_are_computed_once_even_with_fewer_rows(count: int) -> None:
    rig = Rig(AMPLE, spec=LARGE, rows=3, chunk=50)
    prompt = prompt_of(1, 130)
    requests = [rig.send(prompt, 5) for _ in range(count)]
    rig.run()

    assert all(rig.tokens(r) == expected_output(prompt, 5, 50) for r in requests)
    assert [rig.cached(r) for r in requests] == [0, *[130] * (count - 1)]
    assert rig.replica.stats.counters["computed_prompt_tokens"] == 130 + count - 1
    rig.assert_conserved()


def test_requests_of_two_namespaces_do_not_wait_for_each_other() -> None:
    rig = Rig(AMPLE, spec=LARGE, chunk=50)
    prompt = prompt_of(2, 200)
    rig.send(prompt, 1, namespace="a")
    rig.send(prompt, 1, namespace="b")

    rig.scheduler.turn()

    assert len(rig.replica.sets.prefills) == 2


@pytest.mark.parametrize(("shared_tokens", "prefills"), [(63, 2), (64, 1)])
def test_nobody_waits_for_a_prefix_too_short_to_be_worth_it(
    shared_tokens: int, prefills: int
) -> None:
    rig = Rig(AMPLE, spec=LARGE, chunk=50)
    shared = prompt_of(3, shared_tokens)
    rig.send([*shared, 41, *prompt_of(4, 90)], 1)
    rig.send([*shared, 45, *prompt_of(5, 90)], 1)

    rig.scheduler.turn()

    assert len(rig.replica.sets.prefills) == prefills


def test_the_request_waited_for_leaves_a_point_where_the_two_part() -> None:
    rig = Rig(AMPLE, spec=LARGE, chunk=90)
    shared = prompt_of(6, 101)
    rig.send([*shared, *prompt_of(7, 150)], 1)
    second = rig.send([*shared, 44, *prompt_of(8, 20)], 2)
    rig.scheduler.turn()
    assert rig.request(second).status is Status.WAITING
    third = rig.send([*shared[:100], 45], 2)
    rig.run()

    assert rig.cached(second) == 101
    assert rig.cached(third) == 100
    rig.assert_conserved()


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
def test_what_waits_to_be_computed_is_neither_cached_nor_in_the_making(
    policy: Literal["lpm", "fcfs"],
) -> None:
    rig = Rig(AMPLE, spec=LARGE, rows=1, chunk=50, policy=policy)
    stats, cached = rig.replica.stats, prompt_of(1, 128)
    rig.send(cached, 0)
    rig.run()
    assert stats.gauges["waiting_uncached_tokens"] == 0

    running = rig.send(prompt_of(6, 301), 9)
    rig.scheduler.turn()
    # No row is free, so that none of these is looked up.
    rig.send([*cached, *prompt_of(7, 70)], 1)
    rig.send([*prompt_of(6, 301), *prompt_of(8, 20)], 1)
    rig.scheduler.turn()
    left = 301 - rig.request(running).scheduled
    assert stats.gauges["waiting_uncached_tokens"] == left + 198 + 321
    rig.run()
    assert stats.gauges["waiting_uncached_tokens"] == 0


def test_a_shared_prefix_that_is_being_computed_counts_once() -> None:
    rig = Rig(AMPLE, spec=LARGE, chunk=50)
    cached = prompt_of(1, 128)
    rig.send(cached, 0)
    rig.run()

    rig.send(prompt_of(6, 301), 9)
    for seed in (7, 8):
        rig.send([*prompt_of(6, 301), *prompt_of(seed, 20)], 1)
    rig.send([*cached, *prompt_of(9, 70)], 1)
    rig.scheduler.turn()
    waiting = rig.replica.sets.waiting
    assert len(waiting) == 2
    started = sum(r.target - r.scheduled for r in rig.replica.sets.prefills)
    assert 301 <= started + 50 <= 301 + 70

    assert rig.replica.stats.gauges["waiting_uncached_tokens"] == started + 2 * 20


def test_the_point_at_the_end_of_a_prompt_serves_who_parts_a_token_before() -> None:
    rig = Rig(AMPLE, spec=LARGE, chunk=50)
    prompt = prompt_of(3, 200)
    maker = rig.send(prompt, 1)
    rig.scheduler.turn()
    waiter = rig.send([*prompt[:199], 45, 46], 1)
    rig.scheduler.turn()
    assert rig.request(waiter).status is Status.WAITING
    assert 199 not in rig.request(maker).holding.save_positions

    rig.run()

    assert rig.cached(waiter) == 199
    rig.assert_conserved()


def test_who_parts_a_token_before_the_end_waits_for_a_last_chunk_on_its_way() -> None:
    policy = ResumePolicy(page_end=False)
    rig = Rig(AMPLE, spec=LARGE, chunk=200, overlap=True, resume=policy)
    prompt = prompt_of(3, 200)
    rig.send(prompt, 1)
    rig.scheduler.turn()
    waiter = rig.send([*prompt[:199], 45, 46], 1)
    rig.run()

    assert rig.cached(waiter) == 199
    rig.assert_conserved()


def test_of_two_prefixes_in_the_making_the_longer_one_is_waited_for() -> None:
    rig = Rig(AMPLE, spec=LARGE, chunk=150)
    long = prompt_of(6, 400)
    rig.send(long, 1)
    rig.scheduler.turn()
    other = rig.send([*long[:101], 44, *prompt_of(8, 60)], 1)
    request = rig.send([*long[:350], 45], 2)
    rig.scheduler.turn()
    assert rig.request(other).status is Status.PREFILL
    assert rig.request(request).status is Status.WAITING
    rig.run()

    assert rig.cached(request) == 350
    rig.assert_conserved()


def test_nobody_waits_for_a_point_that_was_passed_already() -> None:
    rig = Rig(AMPLE, spec=LARGE, chunk=150)
    shared = prompt_of(6, 101)
    rig.send([*shared, *prompt_of(7, 150)], 1)
    rig.scheduler.turn()
    second = rig.send([*shared, 44, *prompt_of(8, 20)], 2)
    rig.turn_until(lambda: rig.request(second).status is Status.PREFILL, turns=1)
    rig.run()

    assert rig.cached(second) == 0
    rig.assert_conserved()


def test_who_has_its_prefix_and_lacks_pages_waits_for_nobody() -> None:
    rig = Rig(PoolSizes(full_pages=30, swa_pages=60, states=20), chunk=16)
    shared = prompt_of(6, 64)
    rig.send([*shared, *prompt_of(7, 130)], 1)
    rig.scheduler.turn()
    second = rig.send([*shared, 44, *prompt_of(8, 99)], 2)
    request = rig.request
    rig.turn_until(lambda: rig.replica.awaits_prefix(request(second)), turns=3)
    rig.turn_until(lambda: bool(rig.replica.sets.prefills) and _passed(rig, 100), turns=12)

    assert request(second).status is Status.WAITING
    assert not rig.replica.awaits_prefix(request(second))
    rig.run()
    assert rig.cached(second) == 64


def _passed(rig: Rig, tokens: int) -> bool:
    return rig.replica.sets.prefills[0].committed >= tokens


@pytest.mark.parametrize("how", ["abort", "retract"])
def test_whoever_waited_goes_on_when_the_other_leaves(how: str) -> None:
    rig = Rig(AMPLE, spec=LARGE, rows=4, chunk=40, resume=ResumePolicy(page_end=False))
    prompt = prompt_of(10, 300)
    first, second = rig.send(prompt, 2), rig.send(prompt, 2)
    rig.scheduler.turn()
    rig.scheduler.turn()
    assert rig.request(second).status is Status.WAITING

    if how == "abort":
        rig.abort(first)
    else:
        rig.replica._planning._retract(rig.at_rest(first))
    rig.run()

    expected = expected_output(prompt, 2, 50)
    assert rig.tokens(second) == expected
    assert rig.tokens(first) == ([] if how == "abort" else expected)
    assert rig.replica.stats.counters["computed_prompt_tokens"] <= 302
    rig.assert_conserved()


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
def test_a_higher_priority_starts_first(policy: str) -> None:
    rig = Rig(AMPLE, rows=1, policy=policy)
    requests = [rig.send(prompt_of(i, 9), 2, priority=p) for i, p in enumerate([0, -1, 5, 0])]

    order = first_steps(rig, requests)

    assert order == [requests[2], requests[0], requests[3], requests[1]]


def test_a_long_prompt_is_not_passed_for_ever_by_cached_ones() -> None:
    """Cached requests keep coming; the long one starts when it has waited long enough."""
    rig = Rig(PoolSizes(20, 100, 20), rows=2)
    cached = prompt_of(20, 20)
    rig.send(cached, 1)
    rig.run()
    rig.send(cached, 8)
    rig.send(cached, 8)
    rig.scheduler.turn()
    large = rig.send(prompt_of(21, 130), 2)
    for _ in range(400):
        if rig.tokens(large):
            break
        if len(rig.replica.sets.waiting) < 4:
            rig.send(cached, 8)
        rig.now_s += 0.05
        rig.scheduler.turn()

    assert rig.tokens(large)
    rig.run()
    rig.assert_conserved()


def test_pages_for_rows_that_decode_are_kept_back() -> None:
    rig = Rig(PoolSizes(6, 60, 9), rows=2, policy="fcfs")
    first = rig.send(prompt_of(30, 14), 30)
    rig.turn_until(lambda: bool(rig.tokens(first)))
    second = rig.send(prompt_of(31, 31), 1)
    rig.scheduler.turn()
    assert rig.request(second).status is Status.WAITING

    rig.run()

    assert rig.replica.stats.counters["retracted_requests"] == 0
    assert rig.tokens(first) == expected_output(prompt_of(30, 14), 30, 50)
    assert rig.tokens(second) == expected_output(prompt_of(31, 31), 1, 50)
    rig.assert_conserved()


def test_pages_for_rows_that_will_decode_with_the_next_step_are_kept_back() -> None:
    rig = Rig(PoolSizes(6, 60, 9), rows=2, policy="fcfs", overlap=True)
    first = rig.send(prompt_of(30, 14), 30)
    rig.turn_until(lambda: bool(rig.replica.sets.decoding.joining))
    second = rig.send(prompt_of(31, 31), 1)
    rig.scheduler.turn()
    assert rig.request(second).status is Status.WAITING

    rig.run()

    assert rig.replica.stats.counters["retracted_requests"] == 0
    assert rig.tokens(first) == expected_output(prompt_of(30, 14), 30, 50)
    rig.assert_conserved()


def test_a_request_that_is_still_prefilling_yields_and_finishes_later() -> None:
    rig = Rig(PoolSizes(12, 60, 12), rows=3, chunk=2)
    old = [rig.send(prompt_of(40 + i, 3), 45) for i in range(2)]
    rig.turn_until(lambda: all(rig.tokens(r) for r in old))
    late = rig.send(prompt_of(50, 60), 3)
    retracted_while: list[Status] = []
    retract = rig.replica._planning._retract

    def note(request: object) -> None:
        retracted_while.append(rig.request(late).status)
        retract(request)  # pyright: ignore[reportArgumentType]

    rig.replica._planning._retract = note
    rig.run()

    assert Status.PREFILL in retracted_while
    for i, request in enumerate(old):
        assert rig.tokens(request) == expected_output(prompt_of(40 + i, 3), 45, 50)
    assert rig.tokens(late) == expected_output(prompt_of(50, 60), 3, 50)
    rig.assert_conserved()


@pytest.mark.parametrize("turns", range(9))
def test_an_abort_is_clean_wherever_it_finds_its_requests(turns: int) -> None:
    rig = Rig(AMPLE, spec=TreeSpec(8, 4, 8), rows=2, chunk=9)
    base = prompt_of(60, 22)
    rig.send(base[:13], 0)
    rig.run()
    requests = [rig.send([*base, i], 4) for i in range(3)]
    other = rig.send(prompt_of(61, 15), 3)
    for _ in range(turns):
        rig.scheduler.turn()

    rig.abort(*requests)
    rig.abort(*requests)
    rig.run()

    assert rig.tokens(other) == expected_output(prompt_of(61, 15), 3, 50)
    again = rig.send([*base, 1], 4)
    rig.run()
    assert rig.tokens(again) == expected_output([*base, 1], 4, 50)
    rig.assert_conserved()


def test_who_waits_for_a_prefix_keeps_a_row_from_those_of_less_priority() -> None:
    def first(priority: int) -> list[int]:
        rig = Rig(AMPLE, spec=LARGE, rows=2, chunk=50)
        shared = prompt_of(20, 200)
        maker = rig.send([*shared, 1], 30)
        rig.scheduler.turn()
        waiter = rig.send([*shared, 2], 2, priority=priority)
        other = rig.send(prompt_of(21, 20), 30)
        order = first_steps(rig, [maker, waiter, other])
        rig.assert_conserved()
        return [order.index(waiter), order.index(other)]

    waiter, other = first(priority=1)
    assert waiter < other
    waiter, other = first(priority=0)
    assert waiter > other


def test_who_waits_for_a_prefix_keeps_one_row_and_no_more() -> None:
    rig = Rig(AMPLE, spec=LARGE, rows=3, chunk=50)
    shared = prompt_of(20, 200)
    rig.send([*shared, 1], 30)
    rig.scheduler.turn()
    waiter = rig.send([*shared, 2], 2, priority=1)
    others = [rig.send(prompt_of(seed, 20), 30) for seed in (21, 26)]
    rig.scheduler.turn()

    waits = [rig.request(r).status is Status.WAITING for r in (waiter, *others)]
    assert waits == [True, False, True]
    rig.run()
    rig.assert_conserved()


def test_a_prompt_stays_urgent_when_all_rows_are_taken() -> None:
    rig = Rig(AMPLE, spec=LARGE, rows=2, chunk=50)
    shared = prompt_of(22, 300)
    maker = rig.send([*shared, 1], 5)
    rig.scheduler.turn()
    rig.send([*shared, 2], 2, priority=10)
    rig.send(prompt_of(23, 20), 30, priority=10)
    for _ in range(2):
        rig.scheduler.turn()

    assert rig.residency.rows_used == 2
    rig.replica._admission.wake()
    rig.scheduler.turn()
    assert rig.request(maker).urgency == 10
    rig.run()
    rig.assert_conserved()


def test_whole_prompts_are_compared_only_where_somebody_may_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(AMPLE, spec=LARGE, rows=8, chunk=400)
    shared = prompt_of(24, 256)
    rig.send(shared, 1)
    rig.run()
    compared: list[int] = []
    monkeypatch.setattr(Request, "common_tokens", lambda self, other: compared.append(self.id) or 0)
    for tail in range(6):
        rig.send([*shared, *prompt_of(30 + tail, 100)], 1)
    rig.run()

    assert not compared
