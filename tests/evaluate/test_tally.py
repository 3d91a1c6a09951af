"""Shares, their intervals, and what paired runs say."""

import math
from dataclasses import replace

import pytest

from tests.evaluate.answer import Answer, Choice, Verdict
from tests.evaluate.conditions import Outcome
from tests.evaluate.tally import Paired, Share, by_place, compare, compare_rows
from tests.evaluate.test_answer import case_of
from tests.train.dialogue import Check, Reply


def outcome(
    key: str,
    *,
    right: bool,
    row: str = "facts",
    distance: int | None = None,
    tokens: tuple[int, ...] = (1,),
    variant: str = "default",
    condition: str = "cold",
    stopped: bool = True,
    valid: bool | None = None,
) -> Outcome:
    """Return an outcome of a case that is only a name."""
    case = replace(case_of(Check(row, "value", "x")), key=key, task=row, row=row, distance=distance)
    answer = Answer(Reply("y"), "stop", 0, tokens, 10, 0)
    verdict = Verdict(right, stopped, valid)
    return Outcome(case, variant, condition, answer, verdict, None, True)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        # Source: Newcombe (1998), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_intervals_are_those_of_wilson(hits: int, n: int, low: float, high: float) -> None:
    told = Share(hits, n)

    assert (told.low, told.high) == pytest.approx((low, high), abs=6e-5)
    assert told.low <= told.value <= told.high


def test_nothing_is_known_of_no_case() -> None:
    told = Share(0, 0)

    assert math.isnan(told.value)
    assert (told.low, told.high) == (0, 1)


def test_cells_are_counted_by_row_and_distance() -> None:
    outcomes = [
        outcome("a", right=True, distance=64),
        outcome("b", right=False, distance=64),
        outcome("c", right=True, distance=512),
        outcome("d", right=True, row="sums"),
    ]

    assert by_place(outcomes) == {
        ("facts", 64): Share(1, 2),
        ("facts", 512): Share(1, 1),
        ("sums", None): Share(1, 1),
    }


def test_runs_are_compared_case_by_case() -> None:
    base = [outcome(key, right=key in "abc") for key in "abcd"]
    other = [
        outcome("d", right=True, tokens=(2,)),
        outcome("b", right=False, tokens=(3,)),
        outcome("a", right=False, tokens=(1, 1)),
        outcome("c", right=True),
        outcome("e", right=True),
    ]

    assert compare(base, other) == Paired(n=4, same_tokens=1, lost=2, gained=1, widest=math.inf)


def test_answers_that_part_at_a_close_choice_are_excused() -> None:
    likely = {"a": -0.70, "b": -0.72}
    one, two = Choice("a", -0.70, likely), Choice("b", -0.72, likely)

    def said(token: int, choice: Choice) -> Outcome:
        told = outcome("k", right=True, tokens=(token,))
        return replace(told, answer=replace(told.answer, choices=(choice,)))

    cold, other = said(1, one), said(2, two)

    assert compare([cold], [other], margin=0.03).excused == 1
    assert compare([cold], [other], margin=0.03).faults == 0
    within = compare([cold], [other], margin=0.01)
    assert (within.excused, within.faults, within.widest) == (0, 1, pytest.approx(0.02))
    assert compare([cold], [other]).faults == 1
    assert compare([cold], [cold]).same_bits == 1
    assert compare([cold], [said(1, replace(one, logprob=-0.71))]).same_bits == 0


def test_points_are_what_was_gained_less_what_was_lost() -> None:
    paired = Paired(n=50, same_tokens=40, lost=6, gained=1)

    assert paired.points == pytest.approx(-10)
    # Variance of a mean of +1, -1 and 0: (7/50 - (5/50)^2) / 50.
    assert paired.error == pytest.approx(100 * math.sqrt((0.14 - 0.01) / 50))
    assert math.isnan(Paired(0, 0, 0, 0).points)


def test_rows_are_compared_apart() -> None:
    base = [outcome("a", right=True), outcome("b", right=True, row="sums")]
    other = [outcome("a", right=False), outcome("b", right=True, row="sums")]

    told = compare_rows(base, other)

    assert (told["facts"].lost, told["sums"].lost) == (1, 0)
