"""Penalties against a formula over Counter, and the table that remembers counts."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from runtime.executor.penalties import Penalties, has_penalty
from runtime.executor.step_plan import SampleState
from runtime.messages import Sampling

VOCAB = 63
CPU = torch.device("cpu")


def _state(output: list[int], *, prompt: tuple[int, ...] = (), **given: Any) -> SampleState:
    sampling = Sampling(max_new_tokens=99, seed=0, **given)
    return SampleState(sampling, None, np.array(prompt, dtype=np.int32), (), output)


def _logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows)) * 3


def _penalised_slowly(logits: torch.Tensor, state: SampleState) -> torch.Tensor:
    """Penalise one row, token by token."""
    sampling, counts = state.sampling, Counter(state.output)
    result = logits.clone()
    for token in set(state.prompt.tolist()) | set(state.output):
        value = result[token].item()
        factor = sampling.repetition_penalty
        result[token] = value / factor if value > 0 else value * factor
    for token, count in counts.items():
        result[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    return result


def _check(penalties: Penalties, states: list[SampleState]) -> None:
    """Apply to rows 1, 3, 5 ... and compare; the rows between must not change."""
    logits = _logits(2 * len(states))
    got = logits.clone()
    rows = list(range(1, 2 * len(states), 2))

    penalties.apply(got, rows, states)

    assert torch.equal(got[::2], logits[::2])
    for row, state in zip(rows, states, strict=True):
        torch.testing.assert_close(got[row], _penalised_slowly(logits[row], state))


@pytest.mark.parametrize(
    "given",
    [
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 0.7},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -1.25},
        {"repetition_penalty": 2.0, "presence_penalty": -0.5, "frequency_penalty": 0.25},
    ],
    ids=str,
)
def test_each_penalty_is_its_formula(given: dict[str, float]) -> None:
    state = _state([3, 3, 3, 62, 0], prompt=(0, 1, 1, 40), **given)

    assert has_penalty(state.sampling)
    _check(Penalties(VOCAB, CPU), [state])


def test_presence_and_frequency_do_not_count_the_prompt() -> None:
    logits = _logits(1)
    got = logits.clone()
    state = _state([], prompt=(1, 2, 3), presence_penalty=1.0, frequency_penalty=1.0)

    Penalties(VOCAB, CPU).apply(got, [0], [state])

    assert torch.equal(got, logits)


def test_no_penalty_is_seen_as_none() -> None:
    assert not has_penalty(_state([]).sampling)


def test_tokens_appended_between_steps_are_counted_once() -> None:
    penalties = Penalties(VOCAB, CPU)
    states = [
        _state([], prompt=(i,), repetition_penalty=1.2, frequency_penalty=0.1 * (i + 1))
        for i in range(5)
    ]

    for step in range(12):
        _check(penalties, states)
        for i, state in enumerate(states):
            state.output.extend([step % 4, (step * i) % VOCAB][: 1 + i % 2])


def test_only_new_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    penalties = Penalties(VOCAB, CPU)
    state = _state([1, 2, 3] * 100, frequency_penalty=0.1)
    _check(penalties, [state])
    monkeypatch.setattr(penalties, "_start", None)
    state.output.append(7)

    _check(penalties, [state])


def test_an_output_that_became_shorter_is_counted_afresh() -> None:
    penalties = Penalties(VOCAB, CPU)
    state = _state([5, 6, 7, 7], frequency_penalty=0.5)
    _check(penalties, [state])
    del state.output[2:]

    _check(penalties, [state])


def test_rows_come_and_go_and_lines_are_used_again() -> None:
    penalties = Penalties(VOCAB, CPU)
    states = [
        _state([i, i, 2 * i], prompt=(i + 9,), repetition_penalty=1.1, presence_penalty=0.2)
        for i in range(11)
    ]

    for first, last in ((0, 3), (2, 9), (5, 11), (0, 4), (0, 11), (10, 11)):
        _check(penalties, states[first:last])
        for state in states[first:last]:
            state.output.append(last)

    assert len(penalties._lines) <= penalties._counts.shape[0] == 16


def test_a_line_left_by_one_request_tells_the_next_nothing() -> None:
    penalties = Penalties(VOCAB, CPU)
    for i in range(20):
        _check(penalties, [_state([i], prompt=(i, i + 1), repetition_penalty=1.3)])

    assert penalties._counts.shape[0] == 4


def test_a_row_is_penalised_the_same_in_any_company() -> None:
    states = [
        _state([i, 2, i], prompt=(i,), repetition_penalty=1.1 + i, frequency_penalty=0.3)
        for i in range(7)
    ]
    logits = _logits(7)
    together = logits.clone()
    Penalties(VOCAB, CPU).apply(together, list(range(7)), states)

    for row, state in enumerate(states):
        alone = logits[row : row + 1].clone()
        Penalties(VOCAB, CPU).apply(alone, [0], [state])
        assert torch.equal(alone[0], together[row])
