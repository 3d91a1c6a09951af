"""One output: when it is free, and when it waits."""

import numpy as np

from runtime.grammar.output import GrammarOutput

FREE = np.array([-2], dtype=np.int32)
FIRST, SECOND = np.array([4], dtype=np.int32), np.array([8], dtype=np.int32)
THINK_END = 9


def output(told: list[int], *, after: int | None = None) -> GrammarOutput:
    return GrammarOutput(1, after, FREE, accept=told.append)


def test_it_waits_for_the_first_mask_and_after_each_token() -> None:
    told: list[int] = []
    made = output(told)
    assert made.allowed is None

    made.mask(FIRST)
    assert made.allowed is FIRST

    made.take(5)
    assert made.allowed is None
    assert told == [5]

    made.mask(SECOND)
    assert made.allowed is SECOND


def test_before_its_beginning_the_output_is_free_but_may_not_end() -> None:
    told: list[int] = []
    made = output(told, after=THINK_END)
    assert made.allowed is None

    made.mask(FIRST)
    made.take(5)
    assert made.allowed is FREE

    made.take(THINK_END)
    assert made.allowed is FIRST
    assert told == []

    made.take(THINK_END)
    assert made.allowed is None
    assert told == [THINK_END]
