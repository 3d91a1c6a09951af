"""Which of several choices a model means: three ways to read their log-probabilities.

Source: the choice methods of SGLang's language, by name and meaning.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """What a backend says of one choice.

    token_ids, token_texts  its tokens after what all choices share with the prompt; an id is None
                  where the backend does not tell
    logprobs                of each token, given everything before it
    unconditional           of each token without the prompt; the first has none
    """

    text: str
    token_ids: tuple[int | None, ...]
    token_texts: tuple[str, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float | None, ...] | None = None

    @property
    def mean(self) -> float:
        """Mean log-probability of its tokens."""
        return sum(self.logprobs) / len(self.logprobs)


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice that was made.

    index      of the choice
    meta_info  what led to it
    decision   the choice
    """

    index: int
    meta_info: dict[str, Any]
    decision: str


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """A way to choose.

    decide                    from scores to the index and further facts
    requires_unconditional_logprobs   whether it reads `ChoiceScore.unconditional`
    """

    name: str
    decide: Callable[[Sequence[ChoiceScore]], tuple[int, dict[str, Any]]]
    requires_unconditional_logprobs: bool = False

    def __call__(
        self, scores: Sequence[ChoiceScore] | None = None, **told: Sequence[Any]
    ) -> Decision:
        """Return the decision. Raises ValueError where there is nothing to choose from.

        told  what SGLang's methods are called with, instead of `scores`: choices,
              input_token_logprobs, unconditional_token_logprobs and facts that follow from them
        """
        scores = _told_scores(**told) if scores is None else scores
        if not scores or not all(score.logprobs for score in scores):
            raise ValueError("every choice needs at least one token")
        index, facts = self.decide(scores)
        return Decision(index, {**_facts(scores), **facts}, scores[index].text)


def _told_scores(
    choices: Sequence[str],
    input_token_logprobs: Sequence[Sequence[Sequence[Any]]],
    unconditional_token_logprobs: Sequence[Sequence[Sequence[Any]]] | None = None,
    **_: Any,
) -> list[ChoiceScore]:
    """Return scores of what SGLang's methods are told: rows of log-probability, id and text."""
    alone = unconditional_token_logprobs
    return [
        ChoiceScore(
            text,
            tuple(row[1] for row in rows),
            tuple(row[2] for row in rows),
            tuple(row[0] for row in rows),
            tuple(row[0] for row in alone[k]) if alone is not None else None,
        )
        for k, (text, rows) in enumerate(zip(choices, input_token_logprobs, strict=True))
    ]


def _facts(scores: Sequence[ChoiceScore]) -> dict[str, Any]:
    rows = [
        [list(row) for row in zip(s.logprobs, s.token_ids, s.token_texts, strict=True)]
        for s in scores
    ]
    return {
        "normalized_prompt_logprobs": [score.mean for score in scores],
        "input_token_logprobs": rows,
    }


def _by_mean(scores: Sequence[ChoiceScore]) -> tuple[int, dict[str, Any]]:
    return _best([score.mean for score in scores]), {}


def _greedily(scores: Sequence[ChoiceScore]) -> tuple[int, dict[str, Any]]:
    width = max(len(score.logprobs) for score in scores)
    matrix = [[*s.logprobs, *[s.mean] * (width - len(s.logprobs))] for s in scores]
    left = list(range(len(scores)))
    for column in range(width):
        highest = max(matrix[row][column] for row in left)
        left = [row for row in left if matrix[row][column] == highest]
    return left[0], {"greedy_logprob_matrix": matrix}


def _by_surprise(scores: Sequence[ChoiceScore]) -> tuple[int, dict[str, Any]]:
    means: list[float] = []
    for score in scores:
        alone = score.unconditional
        if alone is None or len(alone) != len(score.logprobs):
            raise ValueError("the backend gave no unconditional log-probabilities")
        gains = (lp - (base or 0.0) for lp, base in zip(score.logprobs, alone, strict=True))
        means.append(sum(gains) / len(score.logprobs))
    facts = {
        "unconditional_token_logprobs": [list(s.unconditional or ()) for s in scores],
        "normalized_unconditional_prompt_logprobs": means,
    }
    return _best(means), facts


def _best(values: Sequence[float]) -> int:
    """Return the index of the largest value, the first of equals."""
    return max(range(len(values)), key=lambda k: (values[k], -k))


# The likeliest choice per token on average.
token_length_normalized = ChoicesMethod("token_length_normalized", _by_mean)
# The choice that greedy decoding would take, token by token; a shorter one goes on with its mean.
greedy_token_selection = ChoicesMethod("greedy_token_selection", _greedily)
# The choice whose tokens the prompt makes more likely than they are by themselves.
unconditional_likelihood_normalized = ChoicesMethod(
    "unconditional_likelihood_normalized", _by_surprise, requires_unconditional_logprobs=True
)
