"""Whose turn it is, and who yields when pages run out."""

import random

import pytest

from mem_cache.spec import PoolSizes
from runtime.scheduler.request import Request
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=100, swa_pages=100, states=30)
TIGHT = PoolSizes(full_pages=14, swa_pages=40, states=8)


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(40), k=length)


def test_prefill_and_decode_take_turns() -> None:
    rig = Rig(AMPLE, chunk=4)
    first = rig.send(prompt_of(40, 4), 12)
    rig.turn_until(lambda: bool(rig.tokens(first)))
    rig.send(prompt_of(41, 16), 2)
    rig.run()

    names = ["d" if plan.decodes else "p" for plan in rig.plans]
    assert "".join(names[:9]) == "pdpdpdpdp" or "".join(names[:9]) == "ppdpdpdpd"


def test_running_out_of_pages_retracts_and_everybody_still_finishes() -> None:
    rig = Rig(TIGHT, rows=4, chunk=16)
    prompts = [prompt_of(10 + i, 12) for i in range(6)]
    requests = [rig.send(p, 60) for p in prompts]
    rig.run()

    assert rig.replica.stats.counters["retracted_requests"] > 0
    for prompt, request in zip(prompts, requests, strict=True):
        assert rig.tokens(request) == expected_output(prompt, 60, 50)
    rig.assert_conserved()


def test_a_request_that_retracts_itself_with_nothing_else_running_is_admitted_again() -> None:
    rig = Rig(PoolSizes(full_pages=3, swa_pages=60, states=30), rows=3)
    prompt = prompt_of(1, 10)
    # The second copies the first one's last page, and its lock keeps the original: it lacks a page
    # until it lets go of that. The third waits meanwhile, so that the last admission was in vain.
    prompts, counts = [prompt, prompt, [*prompt, 11]], [2, 10, 2]
    requests = [rig.send(p, count) for p, count in zip(prompts, counts, strict=True)]
    rig.run(turns=200)

    assert rig.replica.stats.counters["retracted_requests"] == 1
    for p, count, request in zip(prompts, counts, requests, strict=True):
        assert rig.tokens(request) == expected_output(p, count, 50)
    rig.assert_conserved()


def test_a_retraction_and_its_return_are_no_turns_to_learn_from() -> None:
    rig = Rig(PoolSizes(9, 80, 20), rows=3)
    for i in range(3):
        rig.send(prompt_of(70 + i, 8), 40)
    rig.run()

    assert rig.replica.stats.counters["retracted_requests"] > 0
    returns = rig.residency.cache.arrays.returns
    assert (returns["ended"].sum(), returns["returned"].sum()) == (3, 0)


def test_the_lowest_priority_and_then_the_newest_yields() -> None:
    rig = Rig(PoolSizes(9, 80, 20), rows=3, resume=None)
    prompts = [prompt_of(50 + i, 8) for i in range(3)]
    requests = [rig.send(p, 40, priority=k) for p, k in zip(prompts, (0, 1, 0), strict=True)]
    retracted: list[int] = []
    planning = rig.replica._planning
    retract = planning._retract

    def note(request: Request) -> None:
        retracted.append(request.id)
        retract(request)

    planning._retract = note
    rig.run()

    assert retracted[:2] == [requests[2], requests[0]]
    assert requests[1] not in retracted
    for prompt, request in zip(prompts, requests, strict=True):
        assert rig.tokens(request) == expected_output(prompt, 40, 50)
    rig.assert_conserved()


def test_a_lone_request_may_fill_every_page_there_is() -> None:
    rig = Rig(PoolSizes(5, 20, 3), rows=2)
    rig.send(prompt_of(60, 30), 10)
    rig.run()
    request = rig.send(prompt_of(61, 3), 37)
    rig.run()

    assert rig.tokens(request) == expected_output(prompt_of(61, 3), 37, 50)
    assert rig.replica.stats.counters["retracted_requests"] == 0
    rig.assert_conserved()
