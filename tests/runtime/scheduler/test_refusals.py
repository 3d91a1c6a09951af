"""Who is turned away at the door, for which reason."""

from dataclasses import replace

import pytest

from runtime.messages import Generate, Grammar, Sampling, pack_ids
from runtime.scheduler.refusals import Crowd, refusal_of
from runtime.scheduler.settings import SchedulerSettings
from runtime.share import Share

SETTINGS = SchedulerSettings(context_tokens=20, eos_token_ids=(1,), max_queued_requests=3)


def request(
    prompt: int, new: int, *, grammar: Grammar | None = None, share: Share | None = None
) -> Generate:
    sampling = Sampling(max_new_tokens=new, seed=0, grammar=grammar)
    return Generate(7, pack_ids([5] * prompt), sampling, share=share or Share())


@pytest.mark.parametrize(
    ("message", "known", "waiting", "reason"),
    [
        (request(0, 5), set[int](), 0, "bad_request"),
        (request(5, 5), {7}, 0, "bad_request"),
        (request(15, 6), set[int](), 0, "too_long"),
        (request(5, 5, grammar=Grammar("regex", "a")), set[int](), 0, "grammar"),
        (request(5, 5), set[int](), 3, "queue_full"),
    ],
)
def test_each_fault_has_its_reason(
    message: Generate, known: set[int], waiting: int, reason: str
) -> None:
    refusal = refusal_of(message, SETTINGS, known=known, crowd=Crowd(waiting), has_grammars=False)

    assert refusal is not None
    assert (refusal.request_id, refusal.reason) == (7, reason)
    assert refusal.message


@pytest.mark.parametrize(("prompt", "what"), [(0, "is empty"), (5, "is in use")])
def test_a_bad_request_is_told_what_is_wrong_with_it(prompt: int, what: str) -> None:
    message = request(prompt, 5)
    refusal = refusal_of(message, SETTINGS, known={7}, crowd=Crowd(), has_grammars=False)

    assert refusal is not None
    assert what in refusal.message


@pytest.mark.parametrize("message", [request(15, 5), request(5, 5, grammar=Grammar("regex", "a"))])
def test_what_fits_may_wait(message: Generate) -> None:
    assert refusal_of(message, SETTINGS, known={8}, crowd=Crowd(2), has_grammars=True) is None


def test_who_waits_for_a_row_that_is_free_takes_no_place_in_the_queue() -> None:
    full = [
        refusal_of(
            request(5, 5), SETTINGS, known={8}, crowd=Crowd(n, free_rows=2), has_grammars=False
        )
        for n in (4, 5)
    ]

    assert [one and one.reason for one in full] == [None, "queue_full"]


@pytest.mark.parametrize(
    ("crowd", "refused"),
    [
        (Crowd(waiting=1, tokens=25), False),
        (Crowd(waiting=1, tokens=26), True),
        # Whoever finds a free row does not wait.
        (Crowd(waiting=1, tokens=26, free_rows=2), False),
        (Crowd(waiting=2, tokens=26, free_rows=2), True),
    ],
)
def test_a_queue_is_full_of_tokens_too(crowd: Crowd, refused: bool) -> None:
    settings = replace(SETTINGS, max_queued_tokens=30)

    refusal = refusal_of(request(5, 5), settings, known=(), crowd=crowd, has_grammars=False)

    assert (refusal is not None and refusal.reason == "queue_full") == refused


@pytest.mark.parametrize(
    ("crowd", "refused"),
    [
        (Crowd(share_waiting=1), False),
        (Crowd(share_waiting=2), True),
        (Crowd(share_waiting=2, free_rows=9), False),
        (Crowd(share_waiting=2, free_rows=9, share_running=3), True),
    ],
)
def test_a_share_has_a_queue_of_its_own(crowd: Crowd, refused: bool) -> None:
    message = request(5, 5, share=Share("a", max_running=3, max_queued=2))

    refusal = refusal_of(message, SETTINGS, known=(), crowd=crowd, has_grammars=False)

    assert (refusal is not None and refusal.reason == "queue_full") == refused


def test_retry_after_is_rounded_up_and_1_at_least() -> None:
    told = [
        refusal_of(request(5, 5), SETTINGS, known=(), crowd=Crowd(3, queue_s=s), has_grammars=False)
        for s in (0.0, 2.1)
    ]

    assert [one and one.retry_after_s for one in told] == [1, 3]
