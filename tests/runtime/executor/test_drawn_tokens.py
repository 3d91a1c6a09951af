"""Tokens drawn before the host asks are those it would have drawn, whatever happens meanwhile."""

import numpy as np
import pytest
import torch

from jit_kernels.likeliest import likeliest
from runtime.executor.sampler import Sampler
from tests.runtime.executor.test_sampler import (
    CPU,
    VOCAB,
    Wish,
    constrained,
    every_wish,
    let_join,
    random_logits,
    read,
    sampled,
    saying_so_far,
    wish,
)


def wishes_of_all_kinds() -> list[Wish]:
    """Wishes that between them want everything, grammars too."""
    return [
        *every_wish(),
        constrained(9, 11),
        constrained(*range(3, VOCAB), temperature=2.0),
        constrained(5, 6, 7, temperature=1.0, bias={6: 3.0}),
        constrained(*range(VOCAB), temperature=1.5, seed=3),
        constrained(4, 90, repetition_penalty=1.3, output=(90,), min_new_tokens=3, stop_ids=(4,)),
    ]


@pytest.mark.parametrize("poisoned", [(), (0, 2)])
def test_tokens_are_read_late_and_fed_at_once(poisoned: tuple[int, ...]) -> None:
    wishes = wishes_of_all_kinds()
    logits = random_logits(len(wishes))
    for row in poisoned:
        logits[row, 5] = torch.nan
    positions = np.arange(50, 50 + len(wishes))
    sampler = Sampler(VOCAB, CPU)
    lines = let_join(sampler, wishes, positions.tolist())

    drawn = sampler.draw(logits, lines, positions)
    kept = logits.clone()
    logits.zero_()
    told = read(drawn)

    assert told == sampled(kept, wishes)
    # They are fed, whatever failed.
    assert all(0 <= token < VOCAB for token in drawn.tokens.tolist())
    fine = [k for k in range(len(wishes)) if k not in told.failures]
    assert [drawn.tokens.tolist()[k] for k in fine] == [told.tokens[k] for k in fine]
    assert tuple(told.failures) == poisoned
    assert drawn.read() is drawn.read()


def test_a_steady_company_is_drawn_for_step_after_step_before_anything_is_read() -> None:
    wishes, sampler = wishes_of_all_kinds(), Sampler(VOCAB, CPU)
    lines = let_join(sampler, wishes, [50] * len(wishes))
    at = [np.full(len(wishes), 50 + step) for step in range(4)]

    logits = [random_logits(len(wishes), seed=step) for step in range(4)]
    drawn = [sampler.draw(logits[step], lines, at[step]) for step in range(4)]

    said = [list[int]() for _ in wishes]
    for step in range(4):
        told = read(drawn[step])
        fresh = [saying_so_far(one, so_far) for one, so_far in zip(wishes, said, strict=True)]
        assert told == sampled(logits[step], fresh, positions=at[step].tolist())
        for so_far, token in zip(said, told.tokens, strict=True):
            so_far.append(token)


def test_a_result_asked_for_late_is_that_of_its_own_company() -> None:
    """Also where a line was given to somebody else in the meantime."""
    sampler, first, second = Sampler(VOCAB, CPU), wishes_of_all_kinds(), [wish(temperature=1.0)]
    logits = random_logits(len(first))
    positions = np.arange(50, 50 + len(first))

    early = sampler.draw(logits, let_join(sampler, first, positions.tolist()), positions)
    late = sampler.draw(logits[:1], let_join(sampler, second, [50]), positions[:1])

    assert read(late) == sampled(logits[:1], second)
    assert read(early) == sampled(logits, first)


def test_likeliest_tokens_that_are_known_are_taken_and_not_changed() -> None:
    wishes = wishes_of_all_kinds()
    logits = random_logits(len(wishes))
    logits[1, 3] = torch.nan
    positions = np.arange(50, 50 + len(wishes))
    sampler = Sampler(VOCAB, CPU)
    lines = let_join(sampler, wishes, positions.tolist())
    likely = likeliest(logits)
    before = likely.clone()

    drawn = sampler.draw(logits, lines, positions, likely=likely)
    assert torch.equal(likely, before)
    likely.zero_()

    assert read(drawn) == sampled(logits, wishes)


@pytest.mark.gpu
def test_on_the_gpu_a_company_with_every_wish_is_drawn_for_without_waiting() -> None:
    device = torch.device("cuda")
    wishes = wishes_of_all_kinds()
    count = len(wishes)
    said = [list[int]() for _ in wishes]
    sampler = Sampler(VOCAB, device)
    lines = let_join(sampler, wishes, [50] * count)
    for step in range(4):
        logits, positions = random_logits(count, seed=step), np.full(count, 50 + step)
        there = logits.to(device)
        fresh = [saying_so_far(one, so_far) for one, so_far in zip(wishes, said, strict=True)]
        wanted = sampled(there, fresh, positions=positions.tolist())
        torch.cuda.set_sync_debug_mode("error")
        try:
            drawn = sampler.draw(there, lines, positions)
        finally:
            torch.cuda.set_sync_debug_mode("default")

        told = read(drawn)

        assert told == wanted
        assert told.tokens == sampled(logits, fresh, positions=positions.tolist()).tokens
        for so_far, token in zip(said, told.tokens, strict=True):
            so_far.append(token)
