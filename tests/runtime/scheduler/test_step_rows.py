"""Last tokens of prompts take part in decode steps, those of answers in prefill steps."""

import dataclasses

import numpy as np
import pytest

from mem_cache.spec import PoolSizes
from runtime.executor.plan_rows import PlanRows
from runtime.executor.single_token_steps import is_single_token_step
from runtime.messages import Logprobs
from tests.testing.plan_arrays import PlanArrays
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)
VOCAB = 50
LONG = [i * i % VOCAB for i in range(37)]
SHORT = [7, 3, 9, 1]
TALK = [5, 4, 3, 2, 1]


def cached(*prompts: list[int], overlap: bool = True, rows: int = 4, chunk: int = 16) -> Rig:
    """Return an idle scheduler that has these prompts in its tree."""
    rig = Rig(AMPLE, overlap=overlap, rows=rows, chunk=chunk)
    for prompt in prompts:
        rig.send(prompt, 2)
        rig.run()
    rig.plans.clear()
    return rig


def talking(rig: Rig, new: int = 60, **options: object) -> int:
    """Have a request decode, three tokens of it told."""
    request = rig.send(TALK, new, **options)  # pyright: ignore[reportArgumentType]
    rig.turn_until(lambda: len(rig.tokens(request)) == 3)
    rig.plans.clear()
    return request


def is_single(plan: PlanArrays) -> bool:
    return is_single_token_step(plan.plan, PlanRows.of(plan.plan.rows))


def joint(rig: Rig) -> list[PlanArrays]:
    """Return the steps of one token a row, of several rows, that save resume points."""
    plans = [plan for plan in rig.plans if not plan.decodes]
    return [p for p in plans if len(p.chunk_len) > 1 and (p.chunk_len == 1).all()]


def test_cached_prompts_join_the_rows_that_decode() -> None:
    rig = cached(LONG, SHORT)
    talker = talking(rig)
    computed, waited = rig.runner.computed_tokens, rig.runner.steps - rig.runner.overlapped
    first, second = rig.send(LONG, 6), rig.send(SHORT, 9)
    rig.scheduler.turn()

    (plan,) = rig.plans
    assert not plan.decodes
    assert plan.chunk_len.tolist() == [1, 1, 1]
    assert plan.chunk_start.tolist()[1:] == [len(LONG) - 1, len(SHORT) - 1]
    assert plan.feed.any()
    assert plan.feed.tolist() == [True, False, False]
    assert plan.sampled.tolist() == [0, 1, 2]
    rig.scheduler.turn()
    assert rig.plans[-1].decodes
    assert rig.plans[-1].feed.any()
    assert rig.plans[-1].feed.tolist() == [True] * 3
    rig.run()

    for request, prompt, new in ((talker, TALK, 60), (first, LONG, 6), (second, SHORT, 9)):
        assert rig.tokens(request) == expected_output(prompt, new, VOCAB)
    assert [rig.cached(first), rig.cached(second)] == [len(LONG) - 1, len(SHORT) - 1]
    # Nobody waited for a step of somebody else's.
    assert all(plan.decodes for plan in rig.plans[1:])
    # The prompts' last tokens, and all that were sampled.
    assert rig.runner.computed_tokens - computed == 2 + (60 - 3) + 6 + 9
    assert rig.runner.steps - rig.runner.overlapped == waited
    rig.assert_conserved()


def test_a_joint_step_is_one_that_a_device_decodes() -> None:
    rig = cached(LONG, SHORT)
    talking(rig)
    rig.send(LONG, 6)
    rig.send(SHORT, 9)
    rig.scheduler.turn()

    (plan,) = joint(rig)

    assert is_single(plan)
    # Beside the rows' own there is a resume point of each prompt's end.
    assert sorted(plan.save_row.tolist()) == [0, 1, 1, 2, 2]
    assert plan.page_table.shape == (3, 5)
    assert plan.page_table[2, 1:].tolist() == [0, 0, 0, 0]


def test_whoever_repeats_a_prompt_that_joined_starts_from_what_it_left() -> None:
    rig = cached(LONG)
    talking(rig)
    request = rig.send(LONG, 5)
    rig.run()
    assert joint(rig)
    history = [*LONG, *rig.tokens(request)]

    for tail in ([], [8, 8, 8]):
        again = rig.send([*history, *tail], 4)
        rig.run()
        assert rig.tokens(again) == expected_output([*history, *tail], 4, VOCAB)
        assert rig.cached(again) >= len(history) - 1
    rig.assert_conserved()


def test_a_prompt_that_a_twin_waits_for_takes_a_step_that_samples_both() -> None:
    rig = cached(LONG, rows=2)
    talking(rig)
    first, twin = rig.send(LONG, 4), rig.send(LONG, 6)
    rig.run()

    (plan,) = [plan for plan in rig.plans if len(plan.sampled) > len(plan.chunk_len)]
    assert plan.input_ids.tolist() == LONG[-1:]
    assert plan.sampled.tolist() == [0, 0]
    assert rig.cached(twin) == len(LONG)
    for request, new in ((first, 4), (twin, 6)):
        assert rig.tokens(request) == expected_output(LONG, new, VOCAB)
    rig.assert_conserved()


def test_chunks_take_their_turns_while_last_tokens_join() -> None:
    rig = cached(LONG, chunk=8)
    talker = talking(rig)
    fresh = [i * 7 % 41 for i in range(64)]
    slow = rig.send(fresh, 4)
    rig.scheduler.turn()
    quick = rig.send(LONG, 4)
    rig.run()

    # An answer's last token takes a place of a chunk: one token of that prompt is left, and joins.
    plan, last = joint(rig)
    assert len(plan.chunk_len) == 2
    assert last.input_ids.tolist()[1:] == fresh[-1:]
    at = next(i for i, other in enumerate(rig.plans) if other is plan)
    before, after = rig.plans[at - 1], rig.plans[at + 1]
    assert before.input_ids.tolist() == fresh[:8]
    assert after.input_ids.tolist() == fresh[8:16]
    for request, prompt, new in ((talker, TALK, 60), (slow, fresh, 4), (quick, LONG, 4)):
        assert rig.tokens(request) == expected_output(prompt, new, VOCAB)
    rig.assert_conserved()


def test_a_prompt_that_ends_with_its_first_token_leaves_as_it_came() -> None:
    rig = cached(LONG, SHORT)
    talker = talking(rig)
    stops = expected_output(SHORT, 1, VOCAB)
    single, stopped = rig.send(LONG, 1), rig.send(SHORT, 9, stop=tuple(stops))
    rig.run()

    assert joint(rig)
    assert rig.tokens(single) == expected_output(LONG, 1, VOCAB)
    assert rig.tokens(stopped) == stops
    assert rig.tokens(talker) == expected_output(TALK, 60, VOCAB)
    rig.assert_conserved()


def test_a_token_that_fails_ends_its_request_alone() -> None:
    rig = cached(LONG)
    talker = talking(rig, 9)
    (bad,) = expected_output(LONG, 1, VOCAB)
    assert bad not in expected_output(TALK, 9, VOCAB)
    rig.runner.fail_tokens.add(bad)
    request = rig.send(LONG, 5)
    rig.run()

    assert joint(rig)
    assert rig.outputs(request)[-1].finish == "error"
    assert rig.tokens(talker) == expected_output(TALK, 9, VOCAB)
    rig.assert_conserved()


def test_who_leaves_while_a_joint_step_is_in_flight_harms_nobody() -> None:
    rig = cached(LONG, SHORT)
    talker = talking(rig)
    gone, stays = rig.send(LONG, 6), rig.send(SHORT, 6)
    rig.scheduler.turn()
    assert joint(rig)
    rig.abort(gone, talker)
    rig.run()

    assert rig.tokens(stays) == expected_output(SHORT, 6, VOCAB)
    rig.assert_conserved()


@pytest.mark.parametrize(
    ("options", "joined"),
    [
        ({"logprobs": Logprobs(len(LONG) - 3)}, False),
        ({"logprobs": Logprobs(len(LONG) - 1)}, True),
        ({"min_new": 2}, True),
        ({"new": 0}, False),
        ({}, True),
    ],
)
def test_only_prompts_that_want_a_token_and_nothing_of_themselves_joins(
    options: dict[str, object], joined: bool
) -> None:
    rig = cached(LONG)
    talker = talking(rig)
    fields = {"new": 4, **options}
    request = rig.send(LONG, **fields)  # pyright: ignore[reportArgumentType]
    rig.run()

    assert bool(joint(rig)) == joined
    new = 0 if fields["new"] == 0 else 4
    assert rig.tokens(request) == expected_output(LONG, new, VOCAB)
    assert rig.tokens(talker) == expected_output(TALK, 60, VOCAB)
    rig.assert_conserved()


def test_rows_that_read_their_output_are_joined_as_others_are() -> None:
    rig = cached(LONG)
    talker = talking(rig, logprobs=Logprobs(len(TALK)), min_new=60)
    request = rig.send(LONG, 4)
    rig.run()

    assert joint(rig)
    assert rig.tokens(request) == expected_output(LONG, 4, VOCAB)
    assert rig.tokens(talker) == expected_output(TALK, 60, VOCAB)


def test_without_overlap_last_tokens_are_steps_of_their_own() -> None:
    rig = cached(LONG, overlap=False)
    talking(rig)
    rig.send(LONG, 4)
    rig.scheduler.turn()

    assert not joint(rig)
    assert not rig.plans[0].decodes
    assert rig.plans[0].chunk_len.tolist() == [1]


def test_arrays_of_a_joint_plan_are_of_the_dtypes_of_its_parts() -> None:
    rig = cached(LONG)
    talking(rig)
    rig.scheduler.turn()
    (decode,) = rig.plans
    rig.send(LONG, 4)
    rig.scheduler.turn()
    (plan,) = joint(rig)

    for field in dataclasses.fields(PlanArrays):
        was, now = getattr(decode, field.name), getattr(plan, field.name)
        if isinstance(was, np.ndarray):
            assert isinstance(now, np.ndarray)
            assert now.dtype == was.dtype, field.name


def closings(rig: Rig) -> list[PlanArrays]:
    """Return the steps of chunks that feed rows, too."""
    return [p for p in rig.plans if (p.chunk_len > 1).any() and p.feed.any()]


@pytest.mark.parametrize("new", range(2, 12))
def test_the_last_token_of_an_answer_is_fed_whatever_step_is_next(new: int) -> None:
    rig = Rig(AMPLE, overlap=True, chunk=4)
    fresh = [i * 7 % 41 for i in range(60)]
    first = rig.send(TALK, new)
    rig.turn_until(lambda: len(rig.tokens(first)) > 0)
    long = rig.send(fresh, 3)
    rig.run()

    history = [*TALK, *rig.tokens(first)]
    assert history == [*TALK, *expected_output(TALK, new, VOCAB)]
    assert rig.tokens(long) == expected_output(fresh, 3, VOCAB)
    for request, text in ((first, history), (long, [*fresh, *rig.tokens(long)])):
        again = rig.send([*text, 7, 8], 3)
        rig.run()
        assert rig.cached(again) == len(text)
        assert rig.tokens(again) == expected_output([*text, 7, 8], 3, VOCAB), request
    rig.assert_conserved()


def test_a_token_that_is_fed_beside_chunks_is_not_sampled_from() -> None:
    rig = Rig(AMPLE, overlap=True, chunk=4)
    first = rig.send(TALK, 4)
    rig.turn_until(lambda: len(rig.tokens(first)) > 0)
    rig.send([i * 7 % 41 for i in range(60)], 3)
    rig.run()

    (plan,) = closings(rig)
    assert not plan.decodes
    assert plan.feed.any()
    assert plan.feed.tolist() == [False, True]
    assert plan.chunk_len.tolist() == [3, 1]  # no more than a step may have
    assert plan.chunk_start[1] == len(TALK) + 3
    assert plan.sampled.tolist() == []
    assert plan.save_position[1] == len(TALK) + 4
    assert rig.runner.steps - rig.runner.overlapped == 1


def test_rows_that_make_the_context_of_a_step_too_long_are_not_fed_there() -> None:
    rig = Rig(AMPLE, overlap=True, chunk=4)
    rig.replica._planning._planner._context = 12
    first = rig.send(TALK, 4)
    rig.turn_until(lambda: len(rig.tokens(first)) > 0)
    rig.send([i * 7 % 41 for i in range(60)], 3)
    rig.run()

    assert not closings(rig)
    again = rig.send([*TALK, *rig.tokens(first), 7], 3)
    rig.run()
    assert rig.cached(again) == len(TALK) + 3
    rig.assert_conserved()


def test_as_many_rows_are_fed_as_the_context_of_a_step_has_room_for() -> None:
    def fed(context: int | None) -> list[int]:
        """Return the contexts of the rows of the step that feeds the last tokens of two answers."""
        rig = Rig(AMPLE, overlap=True, chunk=16)
        talkers = [rig.send(talk, 4) for talk in (TALK, TALK[::-1])]
        rig.turn_until(lambda: all(rig.tokens(request) for request in talkers))
        rig.replica._planning._planner._context = context
        rig.send([i * 7 % 41 for i in range(60)], 3)
        rig.run()
        rig.assert_conserved()
        return [n for plan in closings(rig)[:1] for n in (plan.chunk_start + plan.chunk_len)]

    chunk, first, second = fed(None)
    assert first == second == len(TALK) + 4

    assert fed(chunk + first + second) == [chunk, first, second]
    assert fed(chunk + first + second - 1) == [chunk, first]
    assert fed(chunk + first) == [chunk, first]
    assert fed(chunk + first - 1) == []


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_steps_that_feed_rows_besides_have_no_more_tokens_than_others(chunk: int) -> None:
    rig = Rig(AMPLE, overlap=True, chunk=chunk, rows=8)
    talks = [[7 * k + 1, 5, 3] for k in range(4)]
    first = [rig.send(talk, 12) for talk in talks]
    rig.turn_until(lambda: all(rig.tokens(request) for request in first))
    rig.send([i * 7 % 41 for i in range(60)], 3)
    rig.run()

    chunks = [p for p in rig.plans if not p.decodes and not is_single(p)]
    assert max(len(plan.input_ids) for plan in chunks) <= chunk
    for request, talk in zip(first, talks, strict=True):
        assert rig.tokens(request) == expected_output(talk, 12, VOCAB)
        again = rig.send([*talk, *rig.tokens(request), 9], 2)
        rig.run()
        assert rig.cached(again) in (len(talk) + 11, len(talk) + 12)
    rig.assert_conserved()
