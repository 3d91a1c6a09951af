"""A step is launched before the one before it is settled, and nobody can tell."""

import random

import pytest

from mem_cache.spec import PoolSizes
from runtime.messages import Flush, Flushed, Grammar, Logprobs, Shutdown
from runtime.scheduler.request import Request, Status
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)
VOCAB = 50
A = Grammar("regex", "a")


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


def overlapping(sizes: PoolSizes = AMPLE, **options: object) -> Rig:
    return Rig(sizes, overlap=True, **options)  # pyright: ignore[reportArgumentType]


def phases(rig: Rig) -> str:
    return "".join("d" if plan.decodes else "p" for plan in rig.plans)


def fresh_token(prompt: list[int], at_least: int) -> tuple[int, int]:
    """Return a token that the answer first says after so many, and how many come before it."""
    said = expected_output(prompt, 200, VOCAB)
    at = next(i for i in range(at_least, 200) if said[i] not in said[:i])
    return said[at], at


def test_every_step_is_launched_before_the_one_before_it_is_settled() -> None:
    rig = overlapping(chunk=8)
    first = rig.send(prompt_of(1, 6), 40)
    rig.turn_until(lambda: len(rig.tokens(first)) == 3)
    second = rig.send(prompt_of(2, 44), 10)
    rig.run()

    assert "dpdpdpdpdpdpd" in phases(rig)
    assert rig.runner.overlapped == rig.runner.steps - 1
    assert rig.runner.computed_tokens == 6 + 40 + 44 + 10
    assert rig.tokens(first) == expected_output(prompt_of(1, 6), 40, VOCAB)
    assert rig.tokens(second) == expected_output(prompt_of(2, 44), 10, VOCAB)
    rig.assert_conserved()


@pytest.mark.parametrize("new", [0, 1])
def test_an_abort_that_comes_with_the_last_chunk_finds_its_request_finished(new: int) -> None:
    rig = overlapping(chunk=16)
    request = rig.send(prompt_of(1, 12), new)
    rig.turn_until(lambda: rig.request(request).has_chunk_in_flight)
    rig.abort(request)
    rig.run()

    counters = rig.replica.stats.counters
    assert (counters["finished_requests"], counters["aborted_requests"]) == (1, 0)
    assert rig.tokens(request) == expected_output(prompt_of(1, 12), new, VOCAB)
    rig.assert_conserved()


def test_chunks_of_a_prompt_alone_follow_one_another_without_a_pause() -> None:
    rig = overlapping(chunk=8)
    request = rig.send(prompt_of(1, 60), 3)
    rig.run()

    assert phases(rig) == "pppppppp" + "ddd"
    assert rig.runner.overlapped == 10
    assert rig.tokens(request) == expected_output(prompt_of(1, 60), 3, VOCAB)


@pytest.mark.parametrize("length", range(5, 22))
def test_an_answer_that_stopped_is_there_for_the_next_turn_its_last_token_too(length: int) -> None:
    prompt = prompt_of(length, length)
    stop, at = fresh_token(prompt, 3)
    rig = overlapping()
    rig.send([4, 4], 60)
    first = rig.send(prompt, 100, stop=(stop,))
    rig.run()
    computed = rig.runner.computed_tokens

    assert rig.tokens(first) == expected_output(prompt, at + 1, VOCAB)
    assert computed == 2 + 60 + length + at + 1  # the stop token is fed, and what follows dropped
    rig.residency.cache.evict_swa(states=0)
    history = [*prompt, *rig.tokens(first)]
    for tail in ([7, 8, 9], [11]):
        again = rig.send([*history, *tail], 4)
        rig.run()
        assert rig.cached(again) == len(history)
        assert rig.tokens(again) == expected_output([*history, *tail], 4, VOCAB)
    rig.assert_conserved()


@pytest.mark.parametrize("length", [5, 7, 8, 9, 16])
@pytest.mark.parametrize("new", [2, 3, 9, 17])
def test_an_answer_of_full_length_is_there_for_the_next_turn_its_last_token_too(
    length: int, new: int
) -> None:
    prompt = prompt_of(length, length)
    history = [*prompt, *expected_output(prompt, new, VOCAB)]
    rig = overlapping()
    for tokens in (prompt, [*history, 7, 8, 9]):
        request = rig.send(tokens, new)
        rig.run()
        assert rig.tokens(request) == expected_output(tokens, new, VOCAB)
    assert rig.cached(request) == len(history)
    assert rig.runner.computed_tokens == length + new + 3 + new
    rig.assert_conserved()


def test_a_last_token_is_not_fed_where_that_would_cost_another_its_pages() -> None:
    prompt = prompt_of(9, 20)
    rig = overlapping(PoolSizes(full_pages=8, swa_pages=40, states=8))
    # Four pages each; the last token of the first would open one more.
    first, second = rig.send(prompt, 13), rig.send(prompt_of(10, 17), 13)
    rig.run()

    assert [len(rig.tokens(request)) for request in (first, second)] == [13, 13]
    assert rig.replica.stats.counters["retracted_requests"] == 0
    again = rig.send([*prompt, *rig.tokens(first), 7], 2)
    rig.run()
    assert rig.cached(again) == 32
    rig.assert_conserved()


@pytest.mark.parametrize("length", range(5, 22))
def test_whoever_parts_at_the_end_of_an_answer_reads_what_is_theirs(length: int) -> None:
    prompt = prompt_of(length, length)
    stop, _ = fresh_token(prompt, 3)
    rig = overlapping()
    first = rig.send(prompt, 100, stop=(stop,))
    rig.run()

    history = [*prompt, *rig.tokens(first)]
    for other in (history[:-1], [*history[:-2], 48, 48]):
        request = rig.send(other, 4)
        rig.run()
        assert rig.tokens(request) == expected_output(other, 4, VOCAB)
    rig.assert_conserved()


def test_a_request_that_ends_with_its_first_token_had_that_fed() -> None:
    prompt = prompt_of(3, 9)
    [stop] = expected_output(prompt, 1, VOCAB)
    rig = overlapping()
    request = rig.send(prompt, 30, stop=(stop,))
    rig.run()

    assert rig.tokens(request) == [stop]
    rig.scheduler.turn()
    assert phases(rig) == "pd"
    again = rig.send([*prompt, stop, 5], 3)
    rig.run()
    assert rig.cached(again) == 10
    assert rig.tokens(again) == expected_output([*prompt, stop, 5], 3, VOCAB)
    rig.assert_conserved()


def test_a_prompt_that_wants_one_token_is_in_no_decode_step() -> None:
    rig = overlapping()
    for new in (1, 2, 5):
        rig.send(prompt_of(new, 9), new)
    rig.run()

    assert rig.runner.computed_tokens == 3 * 9 + 0 + 2 + 5


def test_rows_that_read_their_output_are_in_flight_as_others_are() -> None:
    grammars = FakeGrammars(VOCAB)
    grammars.instant = True
    rig = overlapping(grammars=grammars, rows=4)
    free = rig.send(prompt_of(1, 6), 40)
    rig.turn_until(lambda: len(rig.tokens(free)) == 5)
    ruled = rig.send(prompt_of(2, 9), 6, grammar=A)
    told = rig.send(prompt_of(3, 9), 6, logprobs=Logprobs(9))
    least = rig.send(prompt_of(4, 9), 6, min_new=6)
    rig.run()

    assert rig.runner.overlapped == rig.runner.steps - 1
    for request, (seed, length, new) in (
        (free, (1, 6, 40)),
        (ruled, (2, 9, 6)),
        (told, (3, 9, 6)),
        (least, (4, 9, 6)),
    ):
        assert rig.tokens(request) == expected_output(prompt_of(seed, length), new, VOCAB)
    rig.assert_conserved()


def test_a_least_number_of_tokens_holds_up_no_step() -> None:
    prompt = prompt_of(5, 9)
    expected = expected_output(prompt, 30, VOCAB)
    later = 7 + expected[6:].index(expected[2]) if expected[2] in expected[6:] else 30
    rig = overlapping()
    request = rig.send(prompt, 30, stop=(expected[2],), min_new=7)
    rig.run()

    assert rig.tokens(request) == expected[:later]
    assert all(plan.plan.sampling is not None for plan in rig.plans)


def test_an_abort_keeps_all_that_was_told_and_drops_what_was_not() -> None:
    rig = overlapping()
    prompt = prompt_of(6, 13)
    gone = rig.send(prompt, 40)
    rig.turn_until(lambda: len(rig.tokens(gone)) == 10)
    said = rig.tokens(gone)
    assert rig.replica.in_flight is not None
    rig.abort(gone)
    rig.run()
    rig.scheduler.turn()

    assert rig.tokens(gone) == said
    assert rig.replica.in_flight is None
    again = rig.send([*prompt, *said, 7], 4)
    rig.run()
    assert rig.cached(again) == len(prompt) + len(said)
    assert rig.tokens(again) == expected_output([*prompt, *said, 7], 4, VOCAB)
    rig.assert_conserved()


def test_an_abort_of_a_prompt_settles_the_chunk_in_flight_first() -> None:
    rig = overlapping(chunk=10)
    prompt = prompt_of(7, 60)
    gone = rig.send(prompt, 4)
    rig.scheduler.turn()
    rig.scheduler.turn()
    assert (rig.request(gone).committed, rig.request(gone).scheduled) == (10, 20)
    rig.abort(gone)
    rig.run()

    again = rig.send(prompt, 4)
    rig.run()
    assert rig.cached(again) == 20
    assert rig.tokens(again) == expected_output(prompt, 4, VOCAB)
    rig.assert_conserved()


def test_the_step_in_flight_is_settled_before_anybody_yields() -> None:
    sizes = PoolSizes(full_pages=14, swa_pages=40, states=8)
    rig = overlapping(sizes)
    retract = rig.replica._planning._retract
    retracted: list[int] = []

    def note(request: Request) -> None:
        assert rig.replica.in_flight is None
        assert request.scheduled == request.committed
        retracted.append(request.id)
        retract(request)

    rig.replica._planning._retract = note
    prompts = [prompt_of(10 + i, 12) for i in range(6)]
    requests = [rig.send(prompt, 60) for prompt in prompts]
    rig.run()

    assert retracted
    for prompt, request in zip(prompts, requests, strict=True):
        assert rig.tokens(request) == expected_output(prompt, 60, VOCAB)
    rig.assert_conserved()


def test_a_failing_row_in_flight_harms_no_other() -> None:
    rig = overlapping()
    prompts = [prompt_of(20 + i, 20) for i in range(4)]
    expected = [expected_output(p, 15, VOCAB) for p in prompts]
    others = {token for k in (0, 2, 3) for token in expected[k]}
    rig.runner.fail_tokens = {next(t for t in expected[1] if t not in others)}
    requests = [rig.send(p, 15) for p in prompts]
    rig.run()

    assert rig.outputs(requests[1])[-1].finish == "error"
    assert [rig.tokens(requests[k]) for k in (0, 2, 3)] == [expected[k] for k in (0, 2, 3)]
    rig.assert_conserved()


def test_a_flush_is_not_held_up_by_a_step_that_nobody_waits_for() -> None:
    prompt = prompt_of(8, 9)
    stop, _ = fresh_token(prompt, 3)
    rig = overlapping()
    rig.send(prompt, 60, stop=(stop,))
    rig.run()
    assert rig.replica.in_flight is not None
    rig.socket.inbox.append(Flush(1))
    request = rig.send(prompt, 5)
    rig.run()

    assert [m.done for m in rig.socket.outbox if isinstance(m, Flushed)] == [True]
    assert rig.cached(request) == 0
    assert rig.tokens(request) == expected_output(prompt, 5, VOCAB)
    rig.assert_conserved()


def test_a_shutdown_settles_the_step_in_flight() -> None:
    rig = overlapping()
    request = rig.send(prompt_of(9, 9), 50)
    rig.turn_until(lambda: len(rig.tokens(request)) == 3)
    rig.socket.inbox.append(Shutdown())
    rig.scheduler.run()

    assert rig.replica.in_flight is None
    assert rig.runner.steps == rig.replica.stats.counters["decode_steps"] + 1


def test_steps_and_tokens_are_counted_when_they_are_settled() -> None:
    prompt = prompt_of(11, 9)
    stop, at = fresh_token(prompt, 4)
    rig = overlapping()
    rig.send(prompt, 60, stop=(stop,))
    rig.run()
    rig.scheduler.turn()

    counters = rig.replica.stats.counters
    assert counters["generation_tokens"] == at + 1
    assert counters["decode_steps"] == at + 1


def test_a_row_that_ended_may_be_anothers_while_its_last_step_is_in_flight() -> None:
    prompt = prompt_of(30, 9)
    stop, _ = fresh_token(prompt, 3)
    rig = overlapping(rows=1)
    first, second = rig.send(prompt, 60, stop=(stop,)), rig.send(prompt_of(31, 7), 12)
    rig.turn_until(lambda: rig.outputs(first) != [] and rig.outputs(first)[-1].finish is not None)
    late = rig.replica.in_flight
    assert late is not None
    rig.scheduler.turn()

    assert rig.request(second).status is Status.PREFILL
    assert rig.request(second).row == int(late.rows.line[0])
    assert rig.replica.in_flight is not late
    rig.run()
    assert rig.tokens(second) == expected_output(prompt_of(31, 7), 12, VOCAB)
    rig.assert_conserved()
