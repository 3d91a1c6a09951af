"""Tokens drawn before the host asks are those it would have drawn; who needs it is refused."""

import numpy as np
import pytest
import torch

from runtime.executor.penalties import has_penalty
from runtime.executor.sampler import Sampler
from runtime.executor.step_plan import SampleState
from tests.runtime.executor.test_sampler import (
    CPU,
    VOCAB,
    _constrained,
    _every_wish,
    _logits,
    _sample,
    _state,
)


def _no_host() -> list[SampleState]:
    """States that between them want everything that needs no host."""
    return [
        state
        for state in _every_wish()
        if not (state.sampling.min_new_tokens or has_penalty(state.sampling))
    ]


@pytest.mark.parametrize("poisoned", [(), (0, 2)])
def test_rows_sampled_ahead_get_the_same_tokens_and_values(poisoned: tuple[int, ...]) -> None:
    states = _no_host()
    logits = _logits(len(states))
    for row in poisoned:
        logits[row, 5] = torch.nan
    positions = np.arange(50, 50 + len(states))

    ahead = Sampler(VOCAB, CPU).sample_ahead(logits, states, positions)
    kept = logits.clone()
    logits.zero_()
    told = ahead.settle()

    assert told == _sample(kept, states)
    assert ahead.tokens.tolist() == told.token_ids
    assert [row for row, reason in enumerate(told.failed) if reason] == list(poisoned)


def test_a_steady_company_is_sampled_ahead_step_after_step() -> None:
    states, sampler = _no_host(), Sampler(VOCAB, CPU)
    for step in range(4):
        logits, first = _logits(len(states), seed=step), 50 + step
        positions = np.arange(first, first + len(states))

        told = sampler.sample_ahead(logits, states, positions).settle()

        assert told == _sample(logits, states, first=first)


def test_a_result_asked_for_late_is_that_of_its_own_company() -> None:
    sampler, first, second = Sampler(VOCAB, CPU), _no_host(), [_state(temperature=1.0)]
    logits = _logits(len(first))

    early = sampler.sample_ahead(logits, first, np.arange(50, 50 + len(first)))
    late = sampler.sample_ahead(logits[:1], second, np.array([50]))

    assert late.settle() == _sample(logits[:1], second)
    assert early.settle() == _sample(logits, first)


@pytest.mark.parametrize(
    "state",
    [
        _state(repetition_penalty=1.1),
        _state(frequency_penalty=0.5),
        _state(min_new_tokens=2, stop_ids=(0,), output=(9,)),
        _constrained(9),
    ],
)
def test_a_row_that_needs_the_host_is_not_sampled_ahead(state: SampleState) -> None:
    with pytest.raises(ValueError, match="needs the host"):
        Sampler(VOCAB, CPU).sample_ahead(_logits(1), [state], np.array([50]))


def test_a_row_that_may_stop_by_now_is_sampled_ahead() -> None:
    state = _state(min_new_tokens=1, stop_ids=(0,), output=(9,))

    told = Sampler(VOCAB, CPU).sample_ahead(_logits(1), [state], np.array([50])).settle()

    assert told == _sample(_logits(1), [state])
