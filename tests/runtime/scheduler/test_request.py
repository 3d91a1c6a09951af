"""What a request knows of itself: its lengths, its limits, what it has in common with others."""

import pytest

from mem_cache.spec import PoolSizes
from runtime.messages import Generate, Logprobs, Sampling, pack_ids
from runtime.scheduler.request import Request
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output


def make(
    prompt: list[int],
    *,
    request_id: int = 1,
    new: int = 4,
    logprobs: Logprobs | None = None,
    stop: tuple[int, ...] = (),
    ignore_eos: bool = False,
) -> Request:
    sampling = Sampling(max_new_tokens=new, seed=0, stop_token_ids=stop, ignore_eos=ignore_eos)
    message = Generate(request_id, pack_ids(prompt), sampling, logprobs=logprobs)
    return Request(message, (90, 91), 0.0)


def test_sampled_tokens_follow_the_prompt() -> None:
    request = make([5, 6, 7], new=2)

    request.append(8)
    request.append(9)

    assert request.tokens.tolist() == [5, 6, 7, 8, 9]
    assert (request.total, request.prompt_tokens, request.output_tokens) == (5, 3, 2)


@pytest.mark.parametrize(("ignore_eos", "expected"), [(False, (3, 90, 91)), (True, (3,))])
def test_end_tokens_of_the_model_stop_a_request_unless_it_ignores_them(
    ignore_eos: bool, expected: tuple[int, ...]
) -> None:
    request = make([1], stop=(3,), ignore_eos=ignore_eos)

    assert request.stop_ids == set(expected)


@pytest.mark.parametrize(
    ("start", "limit"), [(None, 9), (0, 0), (4, 4), (8, 8), (9, 9), (10, 9), (50, 9)]
)
def test_one_token_and_all_wanted_logits_are_computed(start: int | None, limit: int) -> None:
    request = make(list(range(10)), logprobs=None if start is None else Logprobs(start))

    assert request.match_limit == limit


def test_what_was_copied_counts_for_one_admission() -> None:
    request = make(list(range(10)))
    request.copied, request.matched = 5, 8
    request.note_brought(0)
    assert request.holding.copied == 5
    request.note_brought(0)
    assert request.holding.copied == 0


def test_outputs_count_as_known_tokens_once_the_prompts_logits_are_there() -> None:
    request = make(list(range(10)), logprobs=Logprobs(2))
    request.append(1)
    assert request.match_limit == 2

    request.logprob_next = None

    assert request.match_limit == 10


@pytest.mark.parametrize(
    ("mine", "theirs", "common"),
    [
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3, 4], [1, 2, 3], 3),
        ([1, 2, 3], [9, 2, 3], 0),
        ([1, 2, 3], [1, 2, 9], 2),
    ],
)
def test_common_tokens_end_where_two_prompts_part(
    mine: list[int], theirs: list[int], common: int
) -> None:
    other = make(theirs, request_id=2)
    other.target = other.total

    assert make(mine).common_tokens(other) == common


def test_only_what_the_other_prefills_is_common() -> None:
    other = make([1, 2, 3, 4], request_id=2)
    other.target = 2

    assert make([1, 2, 3, 4]).common_tokens(other) == 2


@pytest.mark.parametrize(("prompt", "twin"), [([1, 2, 3], True), ([1, 2, 9], False)])
def test_only_twins_among_prompts_of_one_length_are_compared(prompt: list[int], twin: bool) -> None:
    other = make(prompt, request_id=2)
    other.target = other.total
    request = make([1, 2, 3])

    assert request.is_twin_of(other) is twin
    assert bool(request.common) is twin


@pytest.mark.parametrize(("start", "twin"), [(0, False), (1, False), (2, True)])
def test_who_wants_logits_of_its_prompt_computes_its_own(start: int, twin: bool) -> None:
    other = make([1, 2, 3], request_id=2)
    other.target = other.total

    assert make([1, 2, 3], logprobs=Logprobs(start)).is_twin_of(other) is twin


@pytest.mark.parametrize("field", ["matched", "committed", "scheduled"])
def test_lengths_out_of_order_are_noticed(field: str) -> None:
    request = make([1, 2, 3])
    request.check()

    setattr(request, field, 4)

    with pytest.raises(AssertionError):
        request.check()


def test_an_id_in_use_is_refused_and_may_be_used_again_afterwards() -> None:
    rig = Rig(PoolSizes(60, 60, 20))
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    sampling = Sampling(max_new_tokens=3, seed=0, temperature=0.0)
    rig.socket.inbox = [Generate(7, pack_ids(p), sampling) for p in prompts[:2]]
    rig.run()
    assert [(r.request_id, r.reason) for r in rig.refusals()] == [(7, "bad_request")]
    assert rig.tokens(7) == expected_output(prompts[0], 3, 50)

    rig.socket.outbox.clear()
    rig.socket.inbox = [Generate(7, pack_ids(prompts[2]), sampling)]
    rig.run()

    assert rig.tokens(7) == expected_output(prompts[2], 3, 50)
    rig.assert_conserved()


def test_a_prefill_is_as_urgent_as_who_waits_for_it_and_serves_the_nearest_first() -> None:
    prefill, waiting = make(list(range(40))), [make([1], request_id=k) for k in (2, 3, 4)]
    prefill.start(0, 0)
    waiting[1].level = 3  # by waiting: its priority stays what it was
    for other, position in zip(waiting, (30, 20, 25), strict=True):
        prefill.await_by(other, position)

    assert (prefill.goal, prefill.urgency) == (20, 3)
    prefill.scheduled = 20
    assert prefill.goal == prefill.target
    prefill.await_nobody()
    assert prefill.urgency == 0
