"""Lines that join, leave and are given to others, and lines whose tokens follow grammars."""

from typing import Any

import numpy as np
import pytest
import torch

from runtime.executor.logprobs import top_logprobs
from runtime.executor.sampler import Sampler
from runtime.wire.step import Join
from tests.runtime.executor.test_sampler import (
    CPU,
    VOCAB,
    constrained,
    every_wish,
    let_join,
    random_logits,
    read,
    sampled,
    wish,
)
from tests.testing.plans import line_sampling, mask


def test_a_line_is_sampled_only_from_its_join_to_its_leave() -> None:
    sampler, logits = Sampler(VOCAB, CPU), random_logits(1)
    lines = let_join(sampler, [wish()], [20], first_line=7)
    assert sampler.state(7).prompt_tokens == 20
    sampler.draw(logits, lines, np.array([20]))

    sampler.update([7, 8], [])

    with pytest.raises(KeyError):
        sampler.draw(logits, lines, np.array([21]))
    with pytest.raises(KeyError):
        sampler.state(7)


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("row", range(10))
def test_a_line_given_to_another_is_sampled_as_the_other_wants(row: int, leaves: bool) -> None:
    """Nothing of the old one is left: neither its counts nor its bias nor its grammar."""
    logits, after = random_logits(1), every_wish()[row]
    before = constrained(9, 11, frequency_penalty=1.0, bias={9: 3.0}, output=(11, 11, 9))
    sampler = Sampler(VOCAB, CPU)
    lines = let_join(sampler, [before], [20])
    assert read(sampler.draw(logits, lines, np.array([20]))).tokens[0] in (9, 11)

    if leaves:
        sampler.update(lines.tolist(), [])
    let_join(sampler, [after], [50])

    assert read(sampler.draw(logits, lines, np.array([50]))) == sampled(logits, [after])


def test_a_line_does_not_inherit_a_mask() -> None:
    sampler, logits = Sampler(VOCAB, CPU), random_logits(2)
    lines = let_join(sampler, [constrained(9), wish()], [20, 20])
    assert read(sampler.draw(logits, lines, np.array([20, 20]))).tokens[0] == 9

    sampler.update([], [Join(0, line_sampling(constrained=True))])

    with pytest.raises(ValueError, match=r"lines \[0\] are sampled without a mask"):
        sampler.draw(logits, lines, np.array([21, 21]))


def test_a_mask_told_of_nobody_is_not_that_of_who_comes() -> None:
    sampler = Sampler(VOCAB, CPU)
    sampler.mask([mask(0, (9,), VOCAB)])

    sampler.update([], [Join(0, line_sampling(constrained=True))])

    with pytest.raises(ValueError, match="without a mask"):
        sampler.draw(random_logits(1), np.array([0]), np.array([21]))


def test_a_mask_holds_until_another_one_is_told() -> None:
    sampler, logits = Sampler(VOCAB, CPU), random_logits(2)
    lines = let_join(sampler, [constrained(9), constrained(10)], [20, 20])

    def tokens() -> list[int]:
        return read(sampler.draw(logits, lines, np.array([20, 20]))).tokens

    assert [tokens(), tokens()] == [[9, 10], [9, 10]]
    sampler.mask([mask(1, (12,), VOCAB)])
    assert tokens() == [9, 12]


def test_whoever_stays_is_not_touched_by_those_who_come_and_go() -> None:
    """Penalties count on; what a line says is what it says alone."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4] = 2.0, 1.5
    sampler = Sampler(VOCAB, CPU)
    let_join(sampler, [wish(frequency_penalty=0.2)], [20], first_line=5)
    said: list[int] = []
    for step in range(6):
        other = wish(frequency_penalty=0.5, output=(3, 3, 4) * step)
        let_join(sampler, [other], [20], first_line=step % 3)
        lines = np.array([5, step % 3][:: 1 - 2 * (step % 2)])
        told = read(sampler.draw(logits.expand(2, -1), lines, np.full(2, 20)))
        said.append(told.tokens[lines.tolist().index(5)])
        if step % 2:
            sampler.update([step % 3], [])

    assert said == [3, 3, 3, 4, 3, 4]


def test_a_constrained_row_gets_what_its_grammar_allows_and_no_other_row_is_touched() -> None:
    logits = random_logits(3)
    kept = logits.clone()
    free = [wish(temperature=1.0), wish(temperature=1.0, seed=5)]

    got = sampled(logits, [free[0], constrained(0, 77, 128, temperature=1.0), free[1]])

    alone = sampled(logits[[0, 2]], free, positions=[50, 52])
    assert got.tokens[1] in (0, 77, 128)
    assert got.tokens[::2] == alone.tokens
    assert torch.equal(logits, kept)


def test_a_grammar_leaves_the_order_of_what_it_allows() -> None:
    logits = random_logits(1)
    best = max((5, 6, 7), key=lambda token: float(logits[0, token]))

    assert sampled(logits, [constrained(5, 6, 7)]).tokens == [best]
    assert sampled(logits, [constrained(5, 6, 7, bias={5: 100.0})]).tokens == [5]


def test_min_new_tokens_holds_the_end_back_only_while_something_else_is_allowed() -> None:
    late: dict[str, Any] = {"min_new_tokens": 4, "stop_ids": (2,), "bias": {2: 100.0}}

    both = sampled(random_logits(1), [constrained(2, 9, **late)])
    only = sampled(random_logits(2), [constrained(2, **late), wish(**late)])

    assert both.tokens == [9]
    assert only.tokens[0] == 2
    assert only.tokens[1] != 2
    assert only.failures == {}


def test_the_end_that_a_grammar_is_left_is_not_anothers() -> None:
    ruled = constrained(3, min_new_tokens=2, stop_ids=(3,))
    stuck = wish(min_new_tokens=2, stop_ids=tuple(range(VOCAB)))

    got = sampled(random_logits(2), [ruled, stuck])

    assert got.tokens[0] == 3
    assert list(got.failures) == [1]


def test_a_grammar_that_allows_nothing_fails_its_row_alone() -> None:
    got = sampled(random_logits(2), [constrained(), wish()])

    assert list(got.failures) == [0]


def test_without_a_grammar_no_mask_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a mask was applied")

    monkeypatch.setattr("runtime.executor.sampler.mask_logits", never)

    got = sampled(random_logits(10), every_wish())

    assert got.failures == {}


def test_log_probabilities_are_the_models_whatever_the_grammar() -> None:
    logits = random_logits(1)

    got = sampled(logits, [constrained(9, top_logprobs=0)])

    assert got.logprobs == {0: top_logprobs(logits, np.array([9]), 0, ())}


@pytest.mark.gpu
def test_on_the_gpu_lines_join_and_leave_without_waiting() -> None:
    device = torch.device("cuda")
    sampler, logits = Sampler(VOCAB, device), random_logits(10)
    there = logits.to(device)
    # Kernels are loaded at first use, which waits.
    sampler.draw(there, let_join(sampler, every_wish(), [50] * 10), np.full(10, 50)).read()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for first_line in (0, 5, 40):
            sampler.update(range(first_line, first_line + 3), [])
            lines = let_join(sampler, every_wish(), [50] * 10, first_line=first_line)
            sampler.mask([mask(first_line, (9,), VOCAB)])
            drawn = sampler.draw(there, lines, np.full(10, 50))
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert read(drawn) == sampled(there, every_wish(), positions=[50] * 10)
