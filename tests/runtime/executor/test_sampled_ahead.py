"""Tokens drawn before the host asks are those it would have drawn; who needs it is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from runtime.executor.company import Company
from runtime.executor.penalties import has_penalty
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


def _unbegun(*tokens: int, **given: Any) -> SampleState:
    """A state that may say these tokens alone, until its grammar begins."""
    state = _constrained(*tokens, **given)
    assert isinstance(state.constraint, Fixed)
    state.constraint.begun = False
    return state


def test_a_grammar_that_has_not_begun_forbids_ahead_what_it_forbids_later() -> None:
    states = [
        *_no_host(),
        _unbegun(9, 11),
        _unbegun(*range(3, VOCAB), temperature=2.0),
        _unbegun(5, 6, 7, temperature=1.0, logit_bias={6: 3.0}),
        _unbegun(*range(VOCAB), temperature=1.5, seed=3),
    ]
    sampler, first = Sampler(VOCAB, CPU), 50
    for step in range(4):
        logits = _logits(len(states), seed=step)
        positions = np.arange(first, first + len(states))

        told = sampler.sample_ahead(logits, states, positions).settle()

        assert told == _sample(logits, states)
        assert told.token_ids[-4] in (9, 11)


def test_masks_that_forbid_nothing_leave_the_logits_as_they_are() -> None:
    states = [_unbegun(*range(VOCAB)), _state()]
    company = Company.of(states, vocab_size=VOCAB, device=CPU)

    assert company.constrained == [0]
    assert company.unbegun() is None
    assert not company.needs_host()


def test_a_grammar_that_begins_needs_the_host_from_then_on() -> None:
    state, sampler = _unbegun(9), Sampler(VOCAB, CPU)
    sampler.sample_ahead(_logits(1), [state], np.array([50]))
    assert isinstance(state.constraint, Fixed)
    state.constraint.begun = True

    with pytest.raises(ValueError, match="needs the host"):
        sampler.sample_ahead(_logits(1), [state], np.array([51]))


def test_a_row_that_may_stop_by_now_is_sampled_ahead() -> None:
    state = _state(min_new_tokens=1, stop_ids=(0,), output=(9,))

    told = Sampler(VOCAB, CPU).sample_ahead(_logits(1), [state], np.array([50])).settle()

    assert told == _sample(_logits(1), [state])
