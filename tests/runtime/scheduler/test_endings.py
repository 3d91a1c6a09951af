"""However a request ends, it is counted once, and what it held is free."""

from collections.abc import Callable

import pytest

from mem_cache.spec import PoolSizes
from runtime.messages import Stop
from tests.testing.scheduler_rig import Rig

pytestmark = pytest.mark.usefixtures("either_way")

SIZES = PoolSizes(full_pages=30, swa_pages=60, states=20)
PROMPT = list(range(20))
ENDS = ("finished_requests", "aborted_requests", "failed_requests", "refused_requests")


def stop(rig: Rig, request_id: int) -> None:
    rig.socket.inbox.append(Stop([request_id, 999]))


def abort(rig: Rig, request_id: int) -> None:
    rig.abort(request_id, 999)


def fail(rig: Rig, request_id: int) -> None:
    rig.replica._endings.fail(rig.at_rest(request_id), "broken")


def refuse(rig: Rig, request_id: int) -> None:
    rig.replica._endings.quietly(rig.at_rest(request_id), "refused")


def let_be(rig: Rig, request_id: int) -> None:
    pass


CASES: dict[str, Callable[[Rig, int], None]] = {
    "finished_requests": stop,
    "aborted_requests": abort,
    "failed_requests": fail,
    "refused_requests": refuse,
}


@pytest.mark.parametrize("turns", [1, 2, 3, 6], ids=["prefill", "prefilled", "decode", "later"])
@pytest.mark.parametrize("ending", CASES)
def test_every_ending_is_counted_once_wherever_the_request_stands(ending: str, turns: int) -> None:
    rig = Rig(SIZES, rows=1)
    first = rig.send(PROMPT, 30)
    second = rig.send([*PROMPT, 7], 30)
    for _ in range(turns):
        rig.scheduler.turn()

    CASES[ending](rig, second)
    CASES[ending](rig, first)
    rig.run()

    counters = rig.replica.stats.counters
    assert counters["requests"] == 2
    assert {name: counters[name] for name in ENDS} == dict.fromkeys(ENDS, 0) | {ending: 2}
    rig.assert_conserved()


@pytest.mark.parametrize("end", [let_be, *CASES.values()])
def test_background_work_is_in_no_count_of_requests(end: Callable[[Rig, int], None]) -> None:
    rig = Rig(SIZES)
    request = rig.send(PROMPT, 0, background=True)
    rig.scheduler.turn()

    end(rig, request)
    rig.run()

    counters = rig.replica.stats.counters
    assert counters["requests"] == sum(counters[name] for name in ENDS) == 0
    assert counters["prompt_tokens"] == counters["cached_tokens"] == 0
    assert (counters["background_requests"], counters["background_prompt_tokens"]) == (1, 20)
    assert counters["computed_prompt_tokens"] > 0


@pytest.mark.parametrize("end", [let_be, *CASES.values()])
def test_an_end_leaves_a_namespace_no_more_than_its_quota(end: Callable[[Rig, int], None]) -> None:
    rig = Rig(SIZES, quota=16)
    request = rig.send(PROMPT, 30, namespace="a")
    rig.turn_until(lambda: len(rig.tokens(request)) == 9)
    assert rig.residency.cache.tokens_by_namespace() == {"a": 20}

    end(rig, request)
    rig.run()

    assert rig.residency.cache.tokens_by_namespace() == {"a": 16}
    rig.assert_conserved()


def test_an_end_at_a_stop_string_leaves_what_was_computed_to_the_next_turn(
    either_way: bool,
) -> None:
    rig = Rig(SIZES)
    request = rig.send(PROMPT, 30)
    rig.turn_until(lambda: len(rig.tokens(request)) == 9)
    said = rig.tokens(request)

    stop(rig, request)
    rig.run()
    again = rig.send([*PROMPT, *said, 7], 2)
    rig.run()

    assert rig.cached(again) == len(PROMPT) + 8 + either_way
    assert all(item.finish is None for item in rig.outputs(request))


@pytest.mark.parametrize("turns", [1, 2, 12], ids=["prefill", "first tokens", "later"])
def test_who_does_not_stream_is_sent_the_tokens_there_are_when_aborted(turns: int) -> None:
    rig = Rig(SIZES)
    whole, streamed = rig.send(PROMPT, 30, stream=False), rig.send([3, 4], 30)
    for _ in range(turns):
        rig.scheduler.turn()
    there = list(rig.request(whole).outgoing.tokens)

    rig.abort(whole, streamed)
    rig.run()

    (last,) = rig.outputs(whole)
    assert (last.finish, last.error) == ("abort", "aborted on request")
    assert last.token_ids[: len(there)] == there
    assert last.prompt_tokens == len(PROMPT)
    assert all(item.finish is None for item in rig.outputs(streamed))
    rig.assert_conserved()
