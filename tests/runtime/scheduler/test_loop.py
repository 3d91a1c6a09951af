"""The loop on a runner that checks every read: right tokens, right reuse, nothing leaked."""

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.messages import Abort, Flush, Flushed, Logprobs, Queued, State
from runtime.profile_messages import Profiled, StartProfile, StopProfile
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

pytestmark = pytest.mark.usefixtures("either_way")

AMPLE = PoolSizes(full_pages=200, swa_pages=200, states=60)
TIGHT = PoolSizes(full_pages=14, swa_pages=40, states=8)


def prompt_of(seed: int, length: int, vocab: int = 50) -> list[int]:
    return random.Random(seed).choices(range(vocab), k=length)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 15, 16, 17, 40])
@pytest.mark.parametrize("chunk", [1, 5, 16, -1])
def test_a_request_gets_the_tokens_of_its_prompt(length: int, chunk: int) -> None:
    rig = Rig(AMPLE, chunk=chunk)
    prompt = prompt_of(length, length)

    request = rig.send(prompt, 12)
    rig.run()

    assert rig.tokens(request) == expected_output(prompt, 12, 50)
    assert rig.outputs(request)[-1].finish == "length"
    rig.assert_conserved()


def test_the_next_turn_recomputes_one_token_of_its_past_at_most(either_way: bool) -> None:
    rig = Rig(AMPLE)
    prompt = prompt_of(1, 21)
    first = rig.send(prompt, 10)
    rig.run()

    history = prompt + rig.tokens(first)
    second = rig.send([*history, 3, 4, 5], 6)
    rig.run()

    # With overlap the last token was fed before it was known to be the last.
    assert rig.cached(second) == len(history) - (not either_way)
    assert rig.tokens(second) == expected_output([*history, 3, 4, 5], 6, 50)
    rig.assert_conserved()


@pytest.mark.parametrize("length", [2, 8, 9, 16, 20, 23, 24, 25])
def test_a_repeated_prompt_computes_one_token(length: int) -> None:
    rig = Rig(AMPLE)
    prompt = prompt_of(2, length)
    rig.send(prompt, 3)
    rig.run()

    again = rig.send(prompt, 5)
    rig.run()

    assert rig.cached(again) == length - 1
    assert rig.tokens(again) == expected_output(prompt, 5, 50)
    rig.assert_conserved()


def test_prompts_that_part_inside_a_page_share_up_to_where_they_part() -> None:
    rig = Rig(PoolSizes(200, 200, 60), spec=TreeSpec(256, 64, 128), chunk=100)
    shared = prompt_of(3, 300)
    rig.send([*shared, 1], 3)
    rig.run()

    branch = rig.send([*shared, 2, 9, 9], 3)
    rig.run()
    third = rig.send([*shared, 4, 9, 9], 3)
    rig.run()

    assert rig.cached(branch) == 300
    assert rig.cached(third) == 300
    rig.assert_conserved()


def test_requests_arriving_together_compute_their_shared_prefix_once() -> None:
    rig = Rig(AMPLE, spec=TreeSpec(64, 16, 32), rows=8, chunk=50)
    shared = prompt_of(4, 256)
    requests = [rig.send([*shared, i, 7], 4) for i in range(8)]
    rig.run()

    assert rig.runner.computed_tokens <= 256 + 8 * (2 + 4) + 8
    for i, request in enumerate(requests):
        assert rig.tokens(request) == expected_output([*shared, i, 7], 4, 50)
    rig.assert_conserved()


def test_equal_prompts_arriving_together_are_computed_once() -> None:
    rig = Rig(AMPLE, spec=TreeSpec(128, 16, 32), rows=8, chunk=50)
    prompt = prompt_of(5, 250)
    for _ in range(8):
        rig.send(prompt, 1)
    rig.run()

    assert rig.runner.computed_tokens == 250
    rig.assert_conserved()


def test_less_than_is_worth_a_point_is_not_waited_for(either_way: bool) -> None:
    rig = Rig(AMPLE, spec=TreeSpec(64, 16, 32), rows=8, chunk=50)
    prompt = prompt_of(5, 170)
    requests = [rig.send(prompt, 1) for _ in range(3)]
    rig.run()

    # The begin of the last page, 42 tokens before the end, is there a step earlier; with a step in
    # flight, that which computes the end is planned by then.
    cached = len(prompt) if either_way else 128
    assert [rig.cached(request) for request in requests] == [0, cached, cached]
    rig.assert_conserved()


def test_a_waiting_request_takes_over_when_the_one_it_waits_for_is_aborted() -> None:
    rig = Rig(AMPLE, spec=TreeSpec(64, 16, 32), rows=8, chunk=40)
    prompt = prompt_of(6, 300)
    first, second = rig.send(prompt, 2), rig.send(prompt, 2)
    rig.scheduler.turn()
    assert len(rig.replica.sets.waiting) == 1

    rig.socket.inbox.append(Abort([first]))
    rig.run()

    assert rig.tokens(second) == expected_output(prompt, 2, 50)
    assert rig.cached(second) == 40
    rig.assert_conserved()


def test_tokens_that_wait_are_reported_before_each_step_where_they_are_bounded() -> None:
    rig = Rig(AMPLE, rows=1, adjust=partial(replace, max_queued_tokens=40))
    prompt = prompt_of(7, 24)
    rig.send(prompt, 3)
    rig.scheduler.turn()
    rig.send([*prompt, 1, 2], 3)
    rig.send(prompt_of(8, 18), 3)
    rig.scheduler.turn()
    assert [m for m in rig.socket.outbox if isinstance(m, Queued)] == [Queued(1, 0), Queued(3, 26)]
    [refused] = rig.refusals()
    assert "26 tokens are waiting, 18 more would exceed 40" in refused.message

    rig.run()
    told = [m for m in rig.socket.outbox if isinstance(m, Queued)]
    assert told[-1] == Queued(3, 0)
    assert all(one != following for one, following in pairwise(told))


def test_what_can_never_fit_is_refused_at_once() -> None:
    rig = Rig(TIGHT)
    rig.send(prompt_of(1, 100), 13)
    fits = rig.send(prompt_of(2, 100), 12)
    rig.send([], 4)
    rig.run()

    assert [r.reason for r in rig.refusals()] == ["too_long", "bad_request"]
    assert len(rig.tokens(fits)) == 12
    rig.assert_conserved()


def test_a_full_queue_refuses() -> None:
    rig = Rig(AMPLE, rows=1, max_queued=3)
    for i in range(6):
        rig.send(prompt_of(i, 10), 5)
    rig.run()

    # One of them has a row, as soon as the loop comes to it.
    assert [r.reason for r in rig.refusals()] == ["queue_full"] * 2
    rig.assert_conserved()


def test_a_queue_has_room_for_whoever_finds_a_free_row() -> None:
    rig = Rig(AMPLE, rows=4, max_queued=1)
    for i in range(6):
        rig.send(prompt_of(i, 10), 5)
    rig.run()

    assert len(rig.refusals()) == 1
    rig.assert_conserved()


def test_a_lone_request_starts_cold_when_its_own_match_is_in_the_way() -> None:
    rig = Rig(TIGHT)
    long = prompt_of(7, 100)
    rig.send(long, 10)
    rig.run()

    other = [*long[:12], *prompt_of(8, 90)]
    request = rig.send(other, 8)
    rig.run()

    assert rig.tokens(request) == expected_output(other, 8, 50)
    rig.assert_conserved()


def test_prompt_logprobs_limit_what_comes_from_the_cache() -> None:
    rig = Rig(AMPLE)
    prompt = prompt_of(9, 40)
    rig.send(prompt, 2)
    rig.run()

    request = rig.send(prompt, 1, logprobs=Logprobs(start=25))
    rig.run()

    reported = rig.outputs(request)[0].prompt_logprobs
    assert reported is not None
    assert rig.cached(request) <= 25
    assert reported.ids == prompt[25:]
    assert reported.values[0] is None
    assert all(v is not None for v in reported.values[1:])
    rig.assert_conserved()


def test_no_new_tokens_commits_the_prompt_and_finishes() -> None:
    rig = Rig(AMPLE)
    prompt = prompt_of(11, 30)
    request = rig.send(prompt, 0)
    rig.run()
    again = rig.send([*prompt, 1], 1)
    rig.run()

    assert rig.tokens(request) == []
    assert rig.outputs(request)[-1].finish == "length"
    assert rig.cached(again) == 30
    rig.assert_conserved()


def test_stop_tokens_end_a_request_but_not_before_its_minimum() -> None:
    prompt = prompt_of(12, 10)
    expected = expected_output(prompt, 30, 50)
    rig = Rig(AMPLE)
    stop = expected[4]
    early = expected.index(stop)

    request = rig.send(prompt, 30, stop=(stop,))
    rig.run()

    assert rig.tokens(request) == expected[: early + 1]
    assert rig.outputs(request)[-1].matched_stop == stop
    rig.assert_conserved()


def test_nothing_matches_across_namespaces() -> None:
    rig = Rig(AMPLE)
    prompt = prompt_of(13, 30)
    rig.send(prompt, 2, namespace="a")
    rig.run()
    other = rig.send(prompt, 2, namespace="b")
    rig.run()

    assert rig.cached(other) == 0
    rig.assert_conserved()


def test_without_reuse_every_request_is_cold() -> None:
    rig = Rig(AMPLE, reuse=False)
    prompt = prompt_of(14, 30)
    for _ in range(3):
        request = rig.send(prompt, 20)
        rig.run()
        assert rig.cached(request) == 0
        assert rig.tokens(request) == expected_output(prompt, 20, 50)
    assert rig.residency.cache.tree_pages == 0
    rig.assert_conserved()


def test_a_failing_request_harms_no_other() -> None:
    rig = Rig(AMPLE)
    prompts = [prompt_of(20 + i, 20) for i in range(4)]
    expected = [expected_output(p, 15, 50) for p in prompts]
    others = set(expected[0] + expected[2] + expected[3])
    bad = next(t for t in expected[1] if t not in others)
    rig.runner.fail_tokens = {bad}

    requests = [rig.send(p, 15) for p in prompts]
    rig.run()

    assert rig.outputs(requests[1])[-1].finish == "error"
    for i in (0, 2, 3):
        assert rig.tokens(requests[i]) == expected[i]
    rig.assert_conserved()


def test_flush_is_refused_while_requests_run_and_empties_an_idle_cache() -> None:
    rig = Rig(AMPLE)
    rig.send(prompt_of(1, 40), 10)
    rig.scheduler.turn()
    rig.socket.inbox.append(Flush(1))
    rig.run()
    rig.socket.inbox.append(Flush(2))
    rig.scheduler.turn()

    answers = [m for m in rig.socket.outbox if isinstance(m, Flushed)]
    assert [a.done for a in answers] == [False, True]
    assert rig.residency.full.free == AMPLE.full_pages


def test_a_profile_without_a_folder_is_refused_and_nobody_notices() -> None:
    rig = Rig(AMPLE)
    request = rig.send(prompt_of(1, 20), 3)
    rig.socket.inbox += [StartProfile(5), StopProfile(6)]
    rig.run()

    answers = [m for m in rig.socket.outbox if isinstance(m, Profiled)]
    assert [(a.call_id, a.done) for a in answers] == [(5, False), (6, False)]
    assert len(rig.tokens(request)) == 3
    assert any(isinstance(m, State) for m in rig.socket.outbox)
    assert not rig.scheduler.state().profiling


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40)]


@pytest.mark.parametrize("seed", [*range(4), *SLOW])
def test_random_conversations_under_eviction_are_exact_and_conserve_slots(seed: int) -> None:
    rng = random.Random(seed)
    spec = rng.choice([TreeSpec(8, 4, 8), TreeSpec(4, 4, 4), TreeSpec(16, 4, 6), TreeSpec(1, 1, 3)])
    pages = rng.randint(120, 200) // spec.page_size + 6
    rows = rng.randint(1, 6)
    sizes = PoolSizes(
        full_pages=pages,
        swa_pages=rng.randint(1, 3) * spec.row_swa_pages + rng.randint(0, 9),
        states=rng.randint(1, 9),
    )
    rig = Rig(sizes, spec=spec, rows=rows, chunk=rng.choice([1, 3, 11, 64, -1]), vocab=50)
    context = pages * spec.page_size
    systems = [prompt_of(seed * 100 + i, rng.randint(3, 40)) for i in range(3)]
    histories = [list(rng.choice(systems)) for _ in range(8)]
    live: dict[int, tuple[int, list[int], int]] = {}
    for _ in range(250):
        rig.scheduler.turn()
        for request in [r for r in live if any(o.finish for o in rig.outputs(r))]:
            who, prompt, new = live.pop(request)
            assert rig.tokens(request) == expected_output(prompt, new, 50)
            histories[who] = prompt + rig.tokens(request)
        who = rng.randrange(len(histories))
        if any(w == who for w, _, _ in live.values()):
            if rng.random() < 0.02:
                request = next(r for r, (w, _, _) in live.items() if w == who)
                rig.socket.inbox.append(Abort([request]))
                del live[request]
            continue
        prompt = histories[who] + rng.choices(range(50), k=rng.randint(1, 12))
        new = rng.randint(0, 25)
        if rng.random() < 0.15 or len(prompt) + new > context:
            cut = rng.randint(1, len(systems[0]))
            prompt = [*systems[0][:cut], *rng.choices(range(50), k=3)]
        if len(prompt) + new <= context:
            live[rig.send(prompt, new)] = (who, prompt, new)
    rig.run()
    for request, (_, prompt, new) in live.items():
        assert rig.tokens(request) == expected_output(prompt, new, 50)
    assert not rig.refusals()
    rig.assert_conserved()


def test_arrays_of_a_decode_step_hold_one_row_per_request() -> None:
    rig = Rig(AMPLE, rows=4)
    for i in range(4):
        rig.send(prompt_of(40 + i, 9), 30)
    rig.run()

    decodes = [plan for plan in rig.plans if plan.decodes]
    assert max(len(plan.chunk_len) for plan in decodes) == 4
    for plan in decodes:
        rows = len(plan.chunk_len)
        assert len(plan.input_ids) == len(plan.page_table) == len(plan.sampled) == rows


def test_the_first_reply_says_how_long_it_took_and_the_last_how_long_it_decoded() -> None:
    rig = Rig(AMPLE, rows=1, chunk=16)
    first, second = rig.send(prompt_of(1, 40), 10), rig.send(prompt_of(2, 20), 5)
    rig.run()

    opening, *_, last = rig.outputs(first)
    assert 0 < opening.queue_s < opening.prefill_s < last.decode_s
    assert opening.decode_s == last.queue_s == last.prefill_s == 0.0
    waited = rig.outputs(second)[0]
    assert waited.queue_s > opening.queue_s + opening.prefill_s + last.decode_s
    assert waited.prefill_s < opening.prefill_s


def test_a_first_token_from_anothers_prompt_ends_the_wait() -> None:
    rig = Rig(AMPLE, rows=1)
    prompt = prompt_of(3, 20)
    first, twin = rig.send(prompt, 10), rig.send(prompt, 10)
    rig.run()

    (opening, *_), (shared, *_) = rig.outputs(first), rig.outputs(twin)
    assert shared.prefill_s == 0.0
    assert opening.queue_s < shared.queue_s < opening.queue_s + opening.prefill_s + 1e-3
