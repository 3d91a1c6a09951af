"""Who is first: priority, then patience, then the longest match, then arrival."""

import random
from typing import Literal

import pytest

from runtime.messages import Generate, Logprobs, Sampling, pack_ids
from runtime.scheduler.queue import WaitingQueue
from runtime.scheduler.request import Request
from runtime.share import Share


def make(request_id: int, arrival_s: float, priority: int = 0) -> Request:
    sampling = Sampling(max_new_tokens=1, seed=0)
    return Request(Generate(request_id, pack_ids([1]), sampling, priority=priority), (), arrival_s)


def filled(
    *requests: Request, policy: Literal["lpm", "fcfs"] = "lpm", ranked: int = 128
) -> WaitingQueue:
    queue = WaitingQueue(policy, patience_s=2.0, ranked=ranked)
    for request in requests:
        queue.add(request)
    return queue


def order(queue: WaitingQueue, matched: dict[int, int], now_s: float) -> list[int]:
    ranked = [(r, matched.get(r.id, 0)) for r in queue.candidates(now_s)]
    return [r.id for r in queue.order(ranked, now_s)]


def test_the_longest_match_goes_first_and_equals_by_arrival() -> None:
    queue = filled(make(1, 0.3), make(2, 0.2), make(3, 0.1), make(4, 0.1))

    assert order(queue, {1: 50}, 1.0) == [1, 3, 4, 2]


def test_whoever_waited_too_long_goes_before_any_match() -> None:
    queue = filled(make(1, 5.0), make(2, 1.0), make(3, 0.5), make(4, 5.0))

    assert order(queue, {1: 50, 2: 10, 4: 60}, 5.5) == [3, 2, 4, 1]


def test_a_request_that_enough_later_ones_have_passed_is_due_with_all_before_it() -> None:
    queue = WaitingQueue("lpm", patience_s=99.0, most_passed=3)
    for request in (make(1, 0.1), make(2, 0.2), make(3, 0.3), *(make(k, k) for k in range(4, 9))):
        queue.add(request)
    matched = {5: 10, 6: 20, 7: 30, 8: 40}
    by_id = {request.id: request for request in queue}
    assert order(queue, matched, 9.0)[:2] == [8, 7]

    queue.start(by_id[3])
    queue.start(by_id[8])
    assert [by_id[k].passed for k in (1, 2, 4, 7)] == [2, 2, 1, 1]
    assert order(queue, matched, 9.0) == [7, 6, 5, 1, 2, 4]
    # Two rows may go to two that match more: the first ones would be passed too often.
    ranked = [(r, matched.get(r.id, 0)) for r in queue.candidates(9.0)]
    assert [r.id for r in queue.order(ranked, 9.0, rows=2)] == [1, 2, 7, 6, 5, 4]

    queue.start(by_id[7])
    assert order(queue, matched, 9.0) == [1, 2, 6, 5, 4]


def test_who_is_passed_by_another_share_or_priority_is_not_counted() -> None:
    queue = WaitingQueue("lpm", most_passed=1)
    waits = make(1, 0.1)
    others = make(2, 0.2, priority=1), of_share(3, 0.3, "b"), make(4, 0.05), make(5, 0.5)
    for request in (waits, *others):
        queue.add(request)

    for request in others[:3]:
        queue.start(request)
        assert not queue.is_passed(waits)
    queue.start(others[3])
    assert queue.is_passed(waits)


def test_patience_does_not_overtake_priority() -> None:
    queue = filled(make(1, 0.0), make(2, 9.0, priority=1), make(3, 9.0, priority=-1))

    assert order(queue, {3: 99}, 9.5) == [2, 1, 3]


def test_first_come_first_served_knows_priority_and_arrival_only() -> None:
    queue = filled(make(1, 0.3), make(2, 0.2), make(3, 0.4, priority=1), policy="fcfs")

    assert order(queue, {1: 50}, 9.0) == [3, 2, 1]


def test_what_a_retracted_request_has_sampled_is_to_be_computed_too() -> None:
    request = make(1, 0.0)
    request.append(7)

    assert filled(request).uncached_tokens == 2


def test_who_weighs_more_gets_as_many_more_rows_in_one_round() -> None:
    light, heavy = Share("light"), Share("heavy", weight=2.0)
    requests = [make(k, float(k)) for k in range(8)]
    for request in requests:
        request.share = heavy if request.id % 2 else light

    first = [requests[k].share.name for k in order(filled(*requests), {}, 8.0)][:6]
    assert first == ["light", "heavy", "heavy"] * 2


def test_of_a_long_queue_the_most_urgent_and_oldest_are_ranked() -> None:
    queue = filled(*(make(i, 10.0 - i) for i in range(6)), make(9, 20.0, priority=1), ranked=3)

    assert [r.id for r in queue.candidates(0.0)] == [9, 5, 4]


@pytest.mark.parametrize("arrived_first", [1, 2])
def test_a_request_that_comes_back_keeps_its_place(arrived_first: int) -> None:
    first, second = make(arrived_first, 0.0), make(3 - arrived_first, 1.0)
    queue = filled(first, second)
    assert queue.remove(first.id) is first
    assert queue.remove(first.id) is None
    assert list(queue) == [second]

    queue.add(first)

    assert order(queue, {}, 1.0) == [first.id, second.id]
    assert len(queue) == 2


def random_request(draw: random.Random, request_id: int) -> Request:
    """Return a request with one of few prompts; some have sampled, or want what no twin can."""
    # The long ones differ before their tails only.
    head = draw.choice([[], [1], [2], [1] * 301, [2, *[1] * 300]])
    prompt = [*head, *draw.choices([1, 2], k=2)]
    message = Generate(
        request_id,
        pack_ids(prompt),
        Sampling(max_new_tokens=draw.choice([0, 2, 2]), seed=0),
        namespace=draw.choice(["", "", "b"]),
        logprobs=draw.choice([None, None, Logprobs(0), Logprobs(1 << 20)]),
    )
    request = Request(message, (), 0.0)
    request.target = request.total
    if draw.random() < 0.2 and request.sampling.max_new_tokens:
        request.append(1)
    return request


@pytest.mark.parametrize("seed", range(20))
def test_twins_are_those_that_a_scan_of_the_queue_finds_in_its_order(seed: int) -> None:
    draw = random.Random(seed)
    queue, removed, found = WaitingQueue("lpm"), list[Request](), 0
    for request_id in range(150):
        queue.add(random_request(draw, request_id))
        if draw.random() < 0.5:
            removed.append(draw.choice(list(queue)))
            assert queue.remove(removed[-1].id) is removed[-1]
        if removed and draw.random() < 0.3:
            queue.add(removed.pop(draw.randrange(len(removed))))
        request = random_request(draw, 1000 + request_id)
        twins = queue.twins(request)
        assert twins == [other for other in queue if other.is_twin_of(request)]
        found += len(twins)

    assert found > 20
    for request in list(queue):
        queue.remove(request.id)
    assert not queue._alike


def test_a_request_counts_in_whole_until_it_was_looked_up_and_then_from_its_start() -> None:
    draw = random.Random(1)
    first, second = random_request(draw, 1), random_request(draw, 2)
    queue = filled(first, second)
    assert queue.uncached_tokens == first.total + second.total

    queue.note_start(first, first.total - 1)
    assert queue.uncached_tokens == 1 + second.total
    queue.note_start(first, 0)
    queue.remove(second.id)
    assert queue.uncached_tokens == first.total
    queue.remove(first.id)
    assert queue.uncached_tokens == 0


def of_share(request_id: int, arrival_s: float, share: str, *, priority: int = 0) -> Request:
    message = Generate(
        request_id,
        pack_ids([1]),
        Sampling(max_new_tokens=1, seed=0),
        priority=priority,
        share=Share(share),
    )
    return Request(message, (), arrival_s)


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
def test_shares_take_turns_and_inside_one_the_order_is_as_ever(
    policy: Literal["lpm", "fcfs"],
) -> None:
    crowd = [of_share(k, 0.1 * k, "crowd") for k in range(1, 5)]
    queue = filled(*crowd, of_share(5, 0.9, "lone"), of_share(6, 0.95, "lone"), policy=policy)
    matched = {3: 50}

    first, second = ([3, 1], [2, 4]) if policy == "lpm" else ([1, 2], [3, 4])
    assert order(queue, matched, 1.0) == [first[0], 5, first[1], 6, *second]


def test_a_share_never_overtakes_priority() -> None:
    queue = filled(of_share(1, 0.1, "a", priority=1), of_share(2, 0.2, "b"))
    queue.shares.charge(Share("a"), 1000)

    assert order(queue, {}, 1.0) == [1, 2]


def test_of_a_long_queue_each_share_has_its_oldest_ranked() -> None:
    crowd = [of_share(k, 0.1 * k, "crowd") for k in range(1, 9)]
    queue = filled(*crowd, of_share(9, 5.0, "lone"), ranked=3)

    assert sorted(r.id for r in queue.candidates(6.0)) == [1, 2, 9]


@pytest.mark.parametrize("aging_s", [8.0, 0.5])
def test_waiting_adds_to_priority_up_to_the_highest_that_waits(aging_s: float) -> None:
    queue = WaitingQueue("lpm", aging_s=aging_s)
    arrivals = [(0.0, 0), (2.5, 3), (2.6, 5)]
    for number, (steps, priority) in enumerate(arrivals, start=1):
        queue.add(make(number, steps * aging_s, priority=priority))

    assert order(queue, {}, 2.9 * aging_s) == [3, 2, 1]
    # The first one is as urgent as the second, and older; then it has got to the third one's.
    assert order(queue, {}, 3.0 * aging_s) == [3, 1, 2]
    assert order(queue, {}, 5.0 * aging_s) == [1, 2, 3]
