"""Numbers that are not finite: what they touched is not used again, and others notice nothing."""

import numpy as np
import pytest

from mem_cache.spec import PoolSizes
from runtime.messages import Logprobs
from tests.runtime.scheduler.test_prefill import assert_prompt_values
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

AMPLE = PoolSizes(full_pages=64, swa_pages=96, states=20)
PROMPT = [n % 31 for n in range(3, 30)]
BAD, WHY = 33, "logits are not finite"

overlapping = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])


def full_tokens(rig: Rig, tokens: list[int]) -> int:
    """Return how many of `tokens` the tree has."""
    return rig.residency.cache.peek(np.array(tokens, np.int32), limit=len(tokens)).full_tokens


def poison(rig: Rig, tokens: list[int], page: int) -> None:
    """Have one page of what the tree has of `tokens` go bad."""
    match = rig.residency.cache.peek(np.array(tokens, np.int32), limit=len(tokens))
    rig.runner.bad.pages.add(int(match.pages[page]))


def counted(rig: Rig, name: str) -> float:
    return rig.replica.stats.counters[name]


def assert_right(rig: Rig, request: int, prompt: list[int], count: int) -> None:
    assert rig.tokens(request) == expected_output(prompt, count, 50)


@overlapping
def test_a_request_takes_back_what_it_alone_wrote(overlap: bool) -> None:
    """Its first chunks were finite; nobody goes on from them all the same."""
    rig = Rig(AMPLE, chunk=8, overlap=overlap)
    other = rig.send([*PROMPT[:16], 40, 41], 3)
    rig.run()
    rig.runner.bad.tokens.add(BAD)
    failed = rig.send([*PROMPT, *PROMPT, BAD, 4, 5], 3)
    rig.run()

    # Once from the cache, then all of it: it is the prompt that is at fault.
    assert rig.outputs(failed)[-1].error == WHY
    assert counted(rig, "not_finite_requests") == 2
    assert full_tokens(rig, [*PROMPT, *PROMPT]) == 16
    assert full_tokens(rig, [*PROMPT[:16], 40, 41]) >= 18
    rig.runner.bad.tokens.clear()
    again = rig.send([*PROMPT, *PROMPT, BAD, 4, 5], 3)
    rig.run()
    assert_right(rig, again, [*PROMPT, *PROMPT, BAD, 4, 5], 3)
    assert_right(rig, other, [*PROMPT[:16], 40, 41], 3)
    rig.assert_conserved()


@overlapping
@pytest.mark.parametrize("replay", [None, 12])
@pytest.mark.parametrize("page", [0, 1, 2])
@pytest.mark.parametrize("more", [1, 9, 30])
def test_who_started_from_a_bad_page_is_computed_again(
    overlap: bool, replay: int | None, page: int, more: int
) -> None:
    rig = Rig(AMPLE, chunk=8, overlap=overlap, replay=replay)
    rig.send(PROMPT, 4)
    rig.run()
    poison(rig, PROMPT, page)
    prompt = [*PROMPT, *([7] * more)]

    one, other = rig.send(prompt, 5), rig.send([*prompt[:-1], 8], 5)
    rig.run()

    assert_right(rig, one, prompt, 5)
    assert_right(rig, other, [*prompt[:-1], 8], 5)
    assert counted(rig, "failed_requests") == 0
    assert counted(rig, "not_finite_requests") >= 1
    assert counted(rig, "distrusted_pages") >= 1
    before = counted(rig, "not_finite_requests")
    third = rig.send([*prompt, 9], 2)
    rig.run()
    assert rig.cached(third) >= len(PROMPT) - 1
    assert counted(rig, "not_finite_requests") == before
    rig.assert_conserved()


@overlapping
def test_many_that_started_from_a_bad_page_replace_it_once(overlap: bool) -> None:
    rig = Rig(AMPLE, chunk=16, overlap=overlap)
    rig.send(PROMPT, 2)
    rig.run()
    poison(rig, PROMPT, 1)

    asked = [[*PROMPT, n, n] for n in range(4)]
    sent = [rig.send(prompt, 4) for prompt in asked]
    rig.run()

    for request, prompt in zip(sent, asked, strict=True):
        assert_right(rig, request, prompt, 4)
    # Three or four pages of the old prefix, and none of the clean one.
    assert counted(rig, "distrusted_pages") <= 8
    rig.assert_conserved()


@overlapping
def test_a_row_that_decodes_goes_on_behind_what_it_has_said(overlap: bool) -> None:
    rig = Rig(AMPLE, chunk=32, overlap=overlap)
    rig.send(PROMPT, 2)
    rig.run()
    request = rig.send([*PROMPT, 1], 12)
    rig.turn_until(lambda: len(rig.tokens(request)) >= 4)
    poison(rig, PROMPT, 1)
    rig.run()

    assert_right(rig, request, [*PROMPT, 1], 12)
    assert counted(rig, "not_finite_requests") == 1
    rig.assert_conserved()


@overlapping
def test_a_cold_row_that_decodes_fails_and_leaves_nothing(overlap: bool) -> None:
    rig = Rig(AMPLE, chunk=32, overlap=overlap)
    [*_, fifth] = expected_output(PROMPT, 5, 50)
    rig.runner.bad.tokens.add(fifth)
    request = rig.send(PROMPT, 12)
    rig.run()

    assert rig.outputs(request)[-1].error == WHY
    assert full_tokens(rig, PROMPT) == 0
    rig.assert_conserved()


@pytest.mark.parametrize("beside", [False, True], ids=["decode", "beside chunks"])
def test_an_end_that_is_not_finite_is_not_gone_on_from(beside: bool) -> None:
    """The answer's last token is fed when its client has been told that it ended."""
    rig = Rig(AMPLE, chunk=16, overlap=True)
    said = expected_output(PROMPT, 6, 50)
    first = rig.send(PROMPT, 6)
    rig.turn_until(lambda: len(rig.tokens(first)) >= 4)
    rig.runner.bad.tokens.add(said[-1])
    if beside:
        rig.send([41] * 60, 1)
    rig.run()
    rig.scheduler.turn()  # settles the step that fed the token
    assert rig.tokens(first) == said
    assert full_tokens(rig, [*PROMPT, *said]) <= len(PROMPT) + 5

    rig.runner.bad.tokens.clear()
    second = rig.send([*PROMPT, *said, 3], 4)
    rig.run()

    assert_right(rig, second, [*PROMPT, *said, 3], 4)
    assert counted(rig, "not_finite_requests") == 0
    rig.assert_conserved()


@overlapping
def test_a_twin_computes_its_own(overlap: bool) -> None:
    rig = Rig(AMPLE, chunk=64, rows=1, overlap=overlap)
    prompt = [*PROMPT, BAD]
    rig.runner.bad.tokens.add(BAD)
    one, twin = rig.send(prompt, 3), rig.send(prompt, 3)
    rig.turn_until(lambda: bool(rig.outputs(one)))
    rig.runner.bad.tokens.clear()
    rig.run()

    assert rig.outputs(one)[-1].error == WHY
    assert_right(rig, twin, prompt, 3)
    assert rig.cached(twin) == 0
    rig.assert_conserved()


@overlapping
def test_who_is_suspended_can_be_aborted(overlap: bool) -> None:
    rig = Rig(AMPLE, chunk=8, overlap=overlap)
    rig.send(PROMPT, 2)
    rig.run()
    poison(rig, PROMPT, 0)
    request = rig.send([*PROMPT, *PROMPT], 4)
    rig.turn_until(lambda: bool(rig.replica.sets.suspended))
    rig.abort(request)
    rig.run()

    assert not rig.replica.sets.by_id
    rig.assert_conserved()


@overlapping
@pytest.mark.parametrize("start", [30, 36], ids=["at once", "a chunk later"])
def test_log_probabilities_that_may_be_spoilt_are_computed_again(overlap: bool, start: int) -> None:
    rig = Rig(AMPLE, chunk=8, overlap=overlap)
    rig.send(PROMPT, 2)
    rig.run()
    poison(rig, PROMPT, 0)
    prompt = [*PROMPT, *PROMPT]
    request = rig.send(prompt, 4, logprobs=Logprobs(start, 0, ()))
    rig.run()

    assert_right(rig, request, prompt, 4)
    assert_prompt_values(rig, request, prompt, start)
    assert counted(rig, "not_finite_requests") == 1
    rig.assert_conserved()


@pytest.mark.parametrize("stream", [True, False], ids=["told", "kept back"])
def test_log_probabilities_are_told_once_whenever_a_page_goes_bad(stream: bool) -> None:
    rig = Rig(AMPLE, chunk=32)
    rig.send(PROMPT, 2)
    rig.run()
    request = rig.send([*PROMPT, 1], 8, logprobs=Logprobs(25, 0, ()), stream=stream)
    rig.turn_until(lambda: len(rig.replica.sets.decoding) == 1)
    rig.scheduler.turn()
    poison(rig, PROMPT, 1)
    rig.run()

    assert_right(rig, request, [*PROMPT, 1], 8)
    assert_prompt_values(rig, request, [*PROMPT, 1], 25)
    assert all(item.prompt_logprobs is None for item in rig.outputs(request)[1:])
    assert counted(rig, "not_finite_requests") == 1
    rig.assert_conserved()
