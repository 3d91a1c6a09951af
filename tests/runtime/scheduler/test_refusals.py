"""Who is turned away at the door, for which reason."""

import pytest

from runtime.messages import Generate, Grammar, Sampling, pack_ids
from runtime.scheduler.refusals import refusal_of
from runtime.scheduler.settings import SchedulerSettings

SETTINGS = SchedulerSettings(context_tokens=20, eos_token_ids=(1,), max_queued_requests=3)


def request(prompt: int, new: int, *, grammar: Grammar | None = None) -> Generate:
    sampling = Sampling(max_new_tokens=new, seed=0, grammar=grammar)
    return Generate(7, pack_ids([5] * prompt), sampling)


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
    refusal = refusal_of(
        message, SETTINGS, known=known, waiting=waiting, free_rows=0, has_grammars=False
    )

    assert refusal is not None
    assert (refusal.request_id, refusal.reason) == (7, reason)
    assert refusal.message


@pytest.mark.parametrize("message", [request(15, 5), request(5, 5, grammar=Grammar("regex", "a"))])
def test_what_fits_may_wait(message: Generate) -> None:
    assert (
        refusal_of(message, SETTINGS, known={8}, waiting=2, free_rows=0, has_grammars=True) is None
    )


def test_who_waits_for_a_row_that_is_free_takes_no_place_in_the_queue() -> None:
    full = [
        refusal_of(request(5, 5), SETTINGS, known={8}, waiting=n, free_rows=2, has_grammars=False)
        for n in (4, 5)
    ]

    assert [one and one.reason for one in full] == [None, "queue_full"]
