"""Penalties against a formula over Counter, and the table that remembers counts by line."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from runtime.executor.penalties import Penalties, has_penalty
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import LineSampling
from tests.testing.plans import line_sampling

VOCAB = 63
CPU = torch.device("cpu")


def _state(output: Sequence[int], *, prompt: tuple[int, ...] = (), **given: Any) -> LineSampling:
    return line_sampling(output=output, prompt=prompt, **given)


def _logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(rows)) * 3


class Counted:
    """Penalties of some lines, and what each line should be counted with."""

    def __init__(self, states: Sequence[LineSampling] = ()) -> None:
        self.penalties = Penalties(VOCAB, CPU)
        self.states: dict[int, LineSampling] = {}
        self.outputs: dict[int, list[int]] = {}
        for line, state in enumerate(states):
            self.join(line, state)

    def join(self, line: int, state: LineSampling) -> None:
        """Let a line join."""
        self.penalties.join(line, state)
        self.states[line] = state
        self.outputs[line] = unpacked(state.output, INT32).tolist()

    def check(self, lines: Sequence[int]) -> None:
        """Apply to rows 1, 3, 5 ... and compare; the rows between must not change."""
        logits = _logits(2 * len(lines))
        got = logits.clone()
        rows = list(range(1, 2 * len(lines), 2))

        self.penalties.apply(got, rows, lines, [self.states[line] for line in lines])

        assert torch.equal(got[::2], logits[::2])
        for row, line in zip(rows, lines, strict=True):
            torch.testing.assert_close(got[row], self._slowly(logits[row], line))

    def say(self, lines: Sequence[int], tokens: Sequence[int]) -> None:
        """Count the tokens of the rows of the last `check`; those between say others."""
        every = np.full(2 * len(lines), 61)
        every[1::2] = tokens
        self.penalties.count(torch.from_numpy(every))
        for line, token in zip(lines, tokens, strict=True):
            self.outputs[line].append(token)

    def _slowly(self, logits: torch.Tensor, line: int) -> torch.Tensor:
        """Penalise one row, token by token."""
        state, output = self.states[line], self.outputs[line]
        result = logits.clone()
        for token in set(unpacked(state.prompt, INT32).tolist()) | set(output):
            value = result[token].item()
            factor = state.repetition_penalty
            result[token] = value / factor if value > 0 else value * factor
        for token, count in Counter(output).items():
            result[token] -= state.frequency_penalty * count + state.presence_penalty
        return result


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

    assert has_penalty(state)
    Counted([state]).check([0])


def test_presence_and_frequency_do_not_count_the_prompt() -> None:
    logits = _logits(1)
    got = logits.clone()
    state = _state([], prompt=(1, 2, 3), presence_penalty=1.0, frequency_penalty=1.0)
    penalties = Penalties(VOCAB, CPU)
    penalties.join(0, state)

    penalties.apply(got, [0], [0], [state])

    assert torch.equal(got, logits)


def test_no_penalty_is_seen_as_none() -> None:
    assert not has_penalty(_state([]))
    penalties = Penalties(VOCAB, CPU)
    penalties.join(3, _state([1, 2]))
    assert penalties._counts.shape[0] == 0


def test_tokens_sampled_between_steps_are_counted_once() -> None:
    counted = Counted(
        [
            _state([], prompt=(i,), repetition_penalty=1.2, frequency_penalty=0.1 * (i + 1))
            for i in range(5)
        ]
    )

    for step in range(12):
        lines = [i for i in range(5) if step % 3 or i % 2]
        counted.check(lines)
        counted.say(lines, [(step * i) % VOCAB if i % 2 else step % 4 for i in lines])


def test_only_the_rows_of_the_last_step_are_counted() -> None:
    """What is read of the same rows once is used again, whatever was between."""
    counted = Counted([_state([i], frequency_penalty=0.1) for i in range(3)])

    for step, lines in enumerate([[0, 1, 2], [0, 1, 2], [2, 0], [1], [0, 1, 2], [2, 0]]):
        counted.check(lines)
        counted.say(lines, [(7 * step + line) % VOCAB for line in lines])


def test_a_line_that_joins_with_a_long_output_is_counted_with_all_of_it() -> None:
    counted = Counted([_state([1, 2, 3] * 100, frequency_penalty=0.1)])
    counted.check([0])
    counted.say([0], [7])

    counted.check([0])


def test_a_line_that_joins_again_with_a_shorter_output_is_counted_afresh() -> None:
    counted = Counted([_state([5, 6, 7, 7], prompt=(9,), repetition_penalty=1.5)])
    counted.check([0])
    counted.say([0], [8])
    counted.join(0, _state([5, 6], prompt=(9,), repetition_penalty=1.5, frequency_penalty=0.5))

    counted.check([0])


def test_rows_come_and_go_and_the_table_grows_without_a_change() -> None:
    states = [
        _state([i, i, 2 * i], prompt=(i + 9,), repetition_penalty=1.1, presence_penalty=0.2)
        for i in range(11)
    ]
    counted = Counted()

    for first, last in ((0, 3), (2, 9), (5, 11), (0, 4), (0, 11), (10, 11)):
        lines = list(range(first, last))
        for line in lines:
            if line not in counted.states:
                counted.join(line, states[line])
        counted.check(lines)
        counted.say(lines, [last] * len(lines))

    assert len(counted.penalties._slots) <= counted.penalties._counts.shape[0] == 16


def test_a_slot_left_by_one_line_tells_the_next_nothing() -> None:
    counted = Counted()
    for i in range(20):
        counted.join(i, _state([i], prompt=(i, i + 1), repetition_penalty=1.3))
        counted.check([i])
        counted.say([i], [(i + 2) % VOCAB])
        counted.penalties.leave(i)

    assert counted.penalties._counts.shape[0] == 4


def test_a_line_given_to_others_is_counted_as_theirs() -> None:
    """Also where the next one has a penalty of another kind, or none, and one with one again."""
    counted = Counted([_state([5, 5], prompt=(1, 2), repetition_penalty=1.3)])
    counted.check([0])
    counted.say([0], [6])

    counted.join(0, _state([], frequency_penalty=0.5))
    counted.check([0])
    counted.join(0, _state([]))
    assert not counted.penalties._slots
    counted.join(0, _state([], prompt=(3,), repetition_penalty=1.3))
    counted.check([0])


def test_a_line_that_is_not_counted_may_leave() -> None:
    Penalties(VOCAB, CPU).leave(7)


def test_a_row_is_penalised_the_same_in_any_company() -> None:
    states = [
        _state([i, 2, i], prompt=(i,), repetition_penalty=1.1 + i, frequency_penalty=0.3)
        for i in range(7)
    ]
    logits = _logits(7)
    together = logits.clone()
    Counted(states).penalties.apply(together, range(7), range(7), states)

    for row, state in enumerate(states):
        alone = logits[row : row + 1].clone()
        Counted([state]).penalties.apply(alone, [0], [0], [state])
        assert torch.equal(alone[0], together[row])
