"""Tokens drawn before the host asks are those it would have drawn."""

import numpy as np
import pytest
import torch

from runtime.executor.sampler import Sampler
from runtime.executor.step_plan import SampleState
from tests.runtime.executor.test_sampler import (
    CPU,
    VOCAB,
    Fixed,
    _constrained,
    _every_wish,
    _logits,
    _sample,
    _state,
)


def _wishes() -> list[SampleState]:
    """States that between them want everything, grammars too."""
    return [
        *_every_wish(),
        _constrained(9, 11),
        _constrained(*range(3, VOCAB), temperature=2.0),
        _constrained(5, 6, 7, temperature=1.0, logit_bias={6: 3.0}),
        _constrained(*range(VOCAB), temperature=1.5, seed=3),
        _constrained(4, 90, repetition_penalty=1.3, output=(90,), min_new_tokens=3, stop_ids=(4,)),
    ]


@pytest.mark.parametrize("poisoned", [(), (0, 2)])
def test_rows_sampled_ahead_get_the_same_tokens_and_values(poisoned: tuple[int, ...]) -> None:
    states = _wishes()
    logits = _logits(len(states))
    for row in poisoned:
        logits[row, 5] = torch.nan
    positions = np.arange(50, 50 + len(states))

    ahead = Sampler(VOCAB, CPU).sample_ahead(logits, states, positions)
    kept = logits.clone()
    logits.zero_()
    told = ahead.settle()

    assert told == _sample(kept, states)
    assert all(
        0 <= token < VOCAB for token in ahead.tokens.tolist()
    )  # they are fed, whatever failed
    fine = [k for k, reason in enumerate(told.failed) if reason is None]
    assert [ahead.tokens.tolist()[k] for k in fine] == [told.token_ids[k] for k in fine]
    assert [row for row, reason in enumerate(told.failed) if reason] == list(poisoned)


def test_a_steady_company_is_sampled_ahead_step_after_step() -> None:
    states, sampler = _wishes(), Sampler(VOCAB, CPU)
    for step in range(4):
        logits, first = _logits(len(states), seed=step), 50 + step
        positions = np.arange(first, first + len(states))

        told = sampler.sample_ahead(logits, states, positions).settle()

        assert told == _sample(logits, states, first=first)


def test_a_result_asked_for_late_is_that_of_its_own_company() -> None:
    sampler, first, second = Sampler(VOCAB, CPU), _wishes(), [_state(temperature=1.0)]
    logits = _logits(len(first))

    early = sampler.sample_ahead(logits, first, np.arange(50, 50 + len(first)))
    late = sampler.sample_ahead(logits[:1], second, np.array([50]))

    assert late.settle() == _sample(logits[:1], second)
    assert early.settle() == _sample(logits, first)


def test_what_outputs_say_meanwhile_changes_nothing_of_what_was_sampled() -> None:
    state = _state(repetition_penalty=2.0, min_new_tokens=2, stop_ids=(0,), output=(9,))
    logits = _logits(1)
    wanted = _sample(logits, [state])
    ahead = Sampler(VOCAB, CPU).sample_ahead(logits, [state], np.array([50]))
    state.output += wanted.token_ids

    assert ahead.settle() == wanted


def test_a_row_whose_mask_is_not_known_is_sampled_without_one() -> None:
    late, ruled = _constrained(9), _constrained(9)
    assert isinstance(late.constraint, Fixed)
    late.constraint.allowed = None
    logits = _logits(2)

    told = Sampler(VOCAB, CPU).sample_ahead(logits, [late, ruled], np.array([50, 50])).settle()

    assert told.token_ids == [int(logits[0].argmax()), 9]


@pytest.mark.gpu
def test_on_the_gpu_a_company_with_every_wish_is_sampled_without_waiting() -> None:
    device = torch.device("cuda")
    states, sampler = _wishes(), Sampler(VOCAB, device)
    for step in range(4):
        logits, first = _logits(len(states), seed=step), 50 + step
        there = logits.to(device)
        wanted = Sampler(VOCAB, device).sample(there, states, np.arange(first, first + len(states)))
        positions = np.arange(first, first + len(states))
        torch.cuda.set_sync_debug_mode("error")
        try:
            ahead = sampler.sample_ahead(there, states, positions)
        finally:
            torch.cuda.set_sync_debug_mode("default")

        told = ahead.settle()

        assert told == wanted
        assert told.token_ids == _sample(logits, states, first=first).token_ids
        for state, token in zip(states, told.token_ids, strict=True):
            state.output.append(token)
