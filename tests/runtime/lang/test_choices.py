"""Tests of runtime.lang.choices."""

from typing import Any

import pytest

from runtime.lang.choices import (
    ChoiceScore,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)


def score(*logprobs: float, alone: tuple[float | None, ...] | None = None) -> ChoiceScore:
    ids = tuple(range(len(logprobs)))
    return ChoiceScore("c", ids, tuple("t" for _ in ids), logprobs, alone)


def test_the_mean_decides_not_the_sum() -> None:
    decision = token_length_normalized([score(-1.5), score(-1.0, -1.0, -1.0)])

    assert decision.index == 1
    assert decision.meta_info["normalized_prompt_logprobs"] == [-1.5, -1.0]
    assert decision.meta_info["input_token_logprobs"][0] == [[-1.5, 0, "t"]]


def test_of_equals_the_first_is_taken() -> None:
    scores = [score(-1.0), score(-1.0)]

    assert token_length_normalized(scores).index == 0
    assert greedy_token_selection(scores).index == 0


def test_greedy_follows_the_first_token_even_into_a_worse_mean() -> None:
    scores = [score(-0.1, -9.0), score(-0.2, -0.2)]

    assert token_length_normalized(scores).index == 1
    assert greedy_token_selection(scores).index == 0


def test_greedy_breaks_ties_by_the_next_token() -> None:
    scores = [score(-0.1, -3.0, -0.1), score(-0.1, -2.0, -9.0), score(-0.2, 0.0, 0.0)]

    assert greedy_token_selection(scores).index == 1


def test_a_shorter_choice_goes_on_with_its_mean() -> None:
    decision = greedy_token_selection([score(-1.0, -0.5, -2.0), score(-1.0, -0.5)])

    assert decision.meta_info["greedy_logprob_matrix"][1] == [-1.0, -0.5, -0.75]
    assert decision.index == 1


def test_the_unconditional_method_takes_what_the_prompt_makes_likelier() -> None:
    scores = [score(-1.0, -1.0, alone=(None, -0.5)), score(-1.0, -1.5, alone=(None, -9.0))]

    decision = unconditional_likelihood_normalized(scores)

    assert decision.index == 1
    assert decision.meta_info["normalized_unconditional_prompt_logprobs"] == [-0.75, 3.25]


def test_scores_that_cannot_be_judged_are_refused() -> None:
    with pytest.raises(ValueError, match="unconditional"):
        unconditional_likelihood_normalized([score(-1.0)])
    for scores in ([], [score()]):
        with pytest.raises(ValueError, match="at least one token"):
            token_length_normalized(scores)


def test_the_methods_can_be_told_rows_as_sglangs_are() -> None:
    told: dict[str, Any] = {
        "choices": ["organ", "organism"],
        "normalized_prompt_logprobs": [-0.1, -0.2],
        "input_token_logprobs": [[[-0.1, 1, None]], [[-0.1, 1, None], [-0.3, 2, None]]],
        "output_token_logprobs": [[[-0.1, 9, None]], [[-0.1, 9, None]]],
        "unconditional_token_logprobs": [[[None, 1, None]], [[None, 1, None], [-1.4, 2, None]]],
    }

    assert token_length_normalized(**told).decision == "organ"
    assert greedy_token_selection(**told).decision == "organ"
    assert unconditional_likelihood_normalized(**told).decision == "organism"
