"""Reasoning tokens of an answer, counted by its marks."""

import pytest

from runtime.chat.answer_formats import CHANNEL, CONSTRAIN, END, MESSAGE, START
from runtime.chat.marks import DSML, THINK, THINK_END
from runtime.chat.reasoning_counter import HarmonyCounter, ReasoningCounter

MARKS = {1: THINK, 2: THINK_END, 3: DSML}


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([9, 9, 2, 9], 2),
        ([9, 9], 2),
        ([1, 9, 2, 9], 1),
        ([2, 9, 1, 9, 9, 2], 2),
        ([9, 3, 9], 1),
    ],
)
def test_tokens_inside_the_reasoning_count(ids: list[int], expected: int) -> None:
    counter = ReasoningCounter(MARKS, reasoning=True)
    for token_id in ids:
        counter.count([token_id])

    assert counter.tokens == expected


def test_an_answer_that_does_not_begin_with_reasoning_has_none_before_its_mark() -> None:
    counter = ReasoningCounter(MARKS, reasoning=False)
    counter.count([9, 9, 1, 9])

    assert counter.tokens == 1


def test_harmony_counts_what_stands_in_the_channel_of_analysis() -> None:
    marks = {1: CHANNEL, 2: MESSAGE, 3: END, 4: START, 5: CONSTRAIN}
    counter = HarmonyCounter(marks, 9)
    analysis = [1, 9, 2, 20, 21, 9, 3]
    call = [4, 30, 1, 31, 32, 5, 33, 2, 40, 3]

    counter.count([*analysis, *call])

    assert counter.tokens == 3
