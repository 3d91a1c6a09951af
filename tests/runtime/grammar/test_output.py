"""One output: when it is free, when it waits, and whether it is still waited for."""

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
    assert made.pending

    made.mask(FIRST)
    assert made.allowed is FIRST

    made.take(5)
    assert made.pending
    assert told == [5]

    made.mask(SECOND)
    assert made.allowed is SECOND


def test_before_its_beginning_the_output_is_free_but_may_not_end() -> None:
    told: list[int] = []
    made = output(told, after=THINK_END)
    assert made.pending

    made.mask(FIRST)
    made.take(5)
    assert made.allowed is FREE

    made.take(THINK_END)
    assert made.allowed is FIRST
    assert told == []

    made.take(THINK_END)
    assert made.pending
    assert told == [THINK_END]


def test_one_that_is_late_too_often_is_not_waited_for() -> None:
    made = output([])
    for _ in range(8):
        made.was_late()
    assert made.prompt

    made.was_late()
    assert not made.prompt


def test_lateness_now_and_then_is_forgiven() -> None:
    made = output([])
    for _ in range(200):
        made.was_late()
        assert made.prompt
        for _ in range(64):
            made.take(5)
