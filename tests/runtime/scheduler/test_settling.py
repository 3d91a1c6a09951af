"""What a result does to the requests of its step, also to those that have ended since."""

import numpy as np
import pytest

from mem_cache.spec import PoolSizes
from runtime.scheduler.request import Status
from runtime.scheduler.step import Step, StepState
from runtime.wire.arrays import INT32, packed
from runtime.wire.step import NOT_FINITE_REASON, StepResult
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

AMPLE = PoolSizes(full_pages=100, swa_pages=100, states=30)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]

pytestmark = pytest.mark.usefixtures("either_way")


def test_a_chunk_commits_its_own_tokens_whatever_is_scheduled_by_then(either_way: bool) -> None:
    rig = Rig(AMPLE, chunk=5)
    request_id = rig.send(PROMPT, 3)
    rig.scheduler.turn()
    request = rig.request(request_id)
    lengths = [(request.committed, request.scheduled)]
    while request.status is Status.PREFILL:
        rig.scheduler.turn()
        lengths.append((request.committed, request.scheduled))

    ahead = [(0, 5), (5, 10), (10, 12), (12, 13)]
    assert lengths == (ahead if either_way else [(5, 5), (10, 10), (12, 12)])
    rig.run()
    rig.assert_conserved()


def test_a_token_of_a_request_that_has_ended_is_nobodys() -> None:
    rig = Rig(AMPLE)
    request_id = rig.send(PROMPT, 30)
    rig.scheduler.turn()
    request = rig.request(request_id)
    rig.turn_until(lambda: request.output_tokens == 3)
    rig.replica.settle_in_flight()
    rows = rig.replica.sets.decoding.plan()
    plan = rig.replica._builder.build(rows, step=1, decoding=1)
    step = Step(rows, plan, told=1, decoding=1, state=StepState.SAMPLED)
    total, counters = request.total, dict(rig.replica.stats.counters)
    rig.replica._endings.quietly(request, "aborted")

    one = packed([1], INT32)
    result = StepResult(1, finite=b"\1", accepted=one, tokens=packed([7], INT32))
    rig.replica._settling.step(step, result, now_s=1.0, elapsed_s=0.1)

    assert request.total == total
    after = rig.replica.stats.counters
    assert after["decode_steps"] == counters["decode_steps"] + 1
    assert after["generation_tokens"] == counters["generation_tokens"]
    rig.assert_conserved()


def test_a_prompt_without_new_tokens_ends_when_it_is_settled() -> None:
    rig = Rig(AMPLE, chunk=5)
    request = rig.send(PROMPT, 0)
    rig.run()

    (last,) = rig.outputs(request)
    assert (last.token_ids, last.finish) == ([], "length")
    rig.assert_conserved()


def test_without_reuse_nothing_counts_as_cached() -> None:
    rig = Rig(AMPLE, rows=1, reuse=False)
    for _ in range(3):
        rig.send(PROMPT, 4)

    rig.run()

    assert rig.replica.stats.counters["cached_tokens"] == 0


def test_a_waiting_request_with_the_same_prompt_gets_a_token_of_its_own() -> None:
    rig = Rig(AMPLE, rows=1)
    first, twin = rig.send(PROMPT, 4), rig.send(PROMPT, 6)
    rig.turn_until(lambda: bool(rig.tokens(twin)))

    assert rig.request(twin).status is Status.WAITING
    rig.run()
    assert rig.tokens(first) == expected_output(PROMPT, 4, 50)
    assert rig.tokens(twin) == expected_output(PROMPT, 6, 50)
    rig.assert_conserved()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("at", [2, 7, 11])
def test_a_chunk_that_is_not_finite_fails_its_request_and_is_not_published(
    at: int, overlap: bool
) -> None:
    rig = Rig(AMPLE, chunk=5, overlap=overlap)
    bad = [*PROMPT]
    bad[at] = 33
    rig.runner.bad.tokens.add(33)
    failed = rig.send(bad, 4)
    rig.run()
    other = rig.send(PROMPT[::-1], 4)
    rig.run()

    (last,) = rig.outputs(failed)
    assert (last.finish, last.error) == ("error", "logits are not finite")
    assert rig.tokens(other) == expected_output(PROMPT[::-1], 4, 50)
    there = rig.residency.cache.peek(np.array(bad, dtype=np.int32), limit=len(bad), namespace="")
    assert there.full_tokens <= at
    rig.runner.bad.tokens.clear()
    again = rig.send(bad, 4)
    rig.run()
    assert rig.tokens(again) == expected_output(bad, 4, 50)
    rig.assert_conserved()


@pytest.mark.parametrize("reason", [NOT_FINITE_REASON, "no mask"])
@pytest.mark.parametrize("told", [0, 2])
def test_a_token_that_cannot_be_drawn_fails_its_request_and_who_shares_its_logits(
    told: int, reason: str
) -> None:
    rig = Rig(AMPLE, rows=2, chunk=5)
    expected, others = expected_output(PROMPT, 3, 50), expected_output([7, 7], 9, 50)
    assert expected[told] not in {*expected[:told], *others}
    rig.runner.fail_tokens, rig.runner.why_failed = {expected[told]}, reason
    other, first, twin = rig.send([7, 7], 9), rig.send(PROMPT, 6), rig.send(PROMPT, 6)
    rig.run()

    for request in (first, twin):
        assert rig.tokens(request) == expected[:told]
        last = rig.outputs(request)[-1]
        assert (last.finish, last.error) == ("error", reason)
    assert rig.tokens(other) == others
    counters = rig.replica.stats.counters
    assert (counters["failed_requests"], counters["finished_requests"]) == (2, 1)
    assert counters["not_finite_requests"] == 2 * (reason == NOT_FINITE_REASON)
    rig.assert_conserved()
