"""Numbers within bounds: what is written is in them, and what is in them may be written."""

import json
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import xgrammar

from runtime.errors import GrammarError
from runtime.grammar.ebnf import Rules
from runtime.grammar.numbers import Bound, Range, decimal_of, integer_in, number_in
from tests.runtime.grammar.matching import END, compiled_rules, taken, takes


def span(low: float | None, high: float | None, *, inside: bool = True) -> Range:
    ends = [None if end is None else Bound(decimal_of(end), inside) for end in (low, high)]
    return Range(*ends)


def integers(where: Range, step: int | None = None) -> xgrammar.CompiledGrammar:
    rules = Rules()
    return compiled_rules(rules, integer_in(rules, where, step))


def numbers(where: Range) -> xgrammar.CompiledGrammar:
    rules = Rules()
    return compiled_rules(rules, number_in(rules, where))


def written(grammar: xgrammar.CompiledGrammar, pick: random.Random) -> str:
    """Return a number written at random, ended early now and then."""
    matcher, text = xgrammar.GrammarMatcher(grammar), ""
    bits = np.zeros((1, END // 32 + 1), dtype=np.int32)
    while True:
        matcher.fill_next_token_bitmask(bits)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        token = END if END in allowed and pick.random() < 0.2 else int(pick.choice([*allowed]))
        assert matcher.accept_token(token)
        if token == END:
            return text
        text += chr(token)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (-3, 12), (7, 1234), (-100, -7), (95, 105), (-1, 1), (10, 1000)]
)
@pytest.mark.parametrize("step", [None, 1, 3, 7])
def test_integers_are_those_between_the_bounds(low: int, high: int, step: int | None) -> None:
    wanted = [n for n in range(low, high + 1) if n % (step or 1) == 0]
    grammar = integers(span(low, high), step)

    assert [n for n in range(low - 20, high + 20) if takes(grammar, str(n))] == wanted
    assert not any(takes(grammar, text) for text in ("-0", "00", "01", "1.0", "1e1", ""))


@pytest.mark.parametrize("step", [None, 4])
def test_one_bound_leaves_the_other_side_open(step: int | None) -> None:
    above, below = integers(span(-8, None), step), integers(span(None, 8), step)

    assert [n for n in (-12, -8, 0, 8, 4 * 10**15) if takes(above, str(n))] == [
        -8,
        0,
        8,
        4 * 10**15,
    ]
    assert [n for n in (12, 8, 0, -8, -4 * 10**15) if takes(below, str(n))] == [
        8,
        0,
        -8,
        -4 * 10**15,
    ]


@pytest.mark.parametrize("step", [1, 2, 10, 60])
def test_multiples_without_bounds(step: int) -> None:
    grammar = integers(Range(), step)

    assert [n for n in range(-200, 201) if takes(grammar, str(n))] == [
        *range(-200 // step * step + (-200 % step and step), 201, step)
    ]
    # A float has no integer beyond 2^53 for certain, and Python reads 4,300 digits at most.
    assert all(takes(grammar, "6" + "0" * zeros) for zeros in (1, 14, 15))
    assert not any(takes(grammar, "6" + "0" * zeros) for zeros in (16, 5000))


def test_multiples_within_bounds_of_many_digits_end_early() -> None:
    grammar = integers(span(-(10**300), 10**300), 97)

    assert all(takes(grammar, str(97 * 10**zeros)) for zeros in (0, 17))
    assert not any(takes(grammar, str(97 * 10**zeros)) for zeros in (20, 290))
    with pytest.raises(GrammarError, match="none with few enough digits"):
        integers(span(10**30, 10**40), 97)


def test_bounds_of_integers_need_not_be_integers() -> None:
    assert [n for n in range(-5, 6) if takes(integers(span(-2.5, 3.5)), str(n))] == [*range(-2, 4)]
    outside = integers(span(-2, 3, inside=False))
    assert [n for n in range(-5, 6) if takes(outside, str(n))] == [*range(-1, 3)]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_bounds_a_number_is_between_them(seed: int) -> None:
    pick = random.Random(seed)
    ends: list[Any] = sorted(
        pick.choice(
            [pick.uniform(-10, 10), round(pick.uniform(-1e6, 1e6), 2), 10 ** pick.uniform(-20, 20)]
        )
        for _ in range(2)
    )
    low, high = pick.choice([ends, [ends[0], None], [None, ends[1]]])
    inside = pick.random() < 0.5
    grammar = numbers(span(low, high, inside=inside))

    for _ in range(15):
        value = json.loads(written(grammar, pick))
        assert low is None or value > low or (inside and value == low)
        assert high is None or value < high or (inside and value == high)


@pytest.mark.parametrize(
    ("low", "high", "inside", "right", "wrong"),
    [
        (0.5, 2, True, "0.5 0.50 1 1.25 2 2.0", "0.4 0.49 2.01 3 -1 0"),
        (0.5, 2, False, "0.51 1 1.999", "0.5 0.50 2 2.0"),
        (-1.5, 0.25, True, "-1.5 -1 -0.5 0 0.0 0.25", "-1.51 -2 0.26 1 -0 -0.0"),
        (99.5, 1000, True, "99.5 99.75 100 999.999 1000", "99 99.4 1000.5 1001"),
        (None, -3, True, "-3 -3.0 -3.5 -10 -1234567", "-2.9 0 3"),
        (1e-8, 1e-7, True, "0.00000001 0.00000005 0.0000001", "0 0.000000001 0.0000002 1"),
    ],
)
def test_numbers_between_bounds(
    low: float | None, high: float | None, inside: bool, right: str, wrong: str
) -> None:
    grammar = numbers(span(low, high, inside=inside))

    assert [text for text in right.split() if not takes(grammar, text)] == []
    assert [text for text in wrong.split() if takes(grammar, text)] == []


def test_numbers_without_bounds_are_those_of_json() -> None:
    grammar = numbers(Range())

    for text in ("0", "-0", "12", "-1.5e-7", "1E+30", "0.001", "9" * 100):
        assert takes(grammar, text)
    for text in ("01", ".5", "1.", "+1", "1e999", "NaN", "9" * 101, "1e"):
        assert not takes(grammar, text)


@pytest.mark.parametrize(
    ("low", "high", "step"), [(5, 3, None), (0.2, 0.8, None), (1, 2, 3), (10**120, None, None)]
)
def test_where_there_is_no_integer_it_is_said(
    low: float, high: float | None, step: int | None
) -> None:
    with pytest.raises(GrammarError, match="no number fits 'minimum', 'maximum'"):
        integers(span(low, high), step)


def test_a_zero_below_zero_is_a_bound_as_zero_is() -> None:
    assert taken({"type": "number", "maximum": -0.0}, [-1, 0, 0.5]) == [-1, 0]
    assert taken({"type": "integer", "minimum": -0.0, "maximum": 1}, [-1, 0, 1]) == [0, 1]


def test_an_empty_range_of_numbers_is_said() -> None:
    with pytest.raises(GrammarError, match="no number fits"):
        numbers(span(1, 1, inside=False))


def test_a_large_step_is_refused_by_name() -> None:
    with pytest.raises(GrammarError, match="'multipleOf' cannot be enforced above 100"):
        integers(Range(), 101)


def test_floats_are_meant_as_they_are_written_and_large_ones_as_they_are() -> None:
    assert decimal_of(0.1) == Decimal("0.1")
    assert decimal_of(7) == 7
    assert str(decimal_of(-0.0)) == "0"
    assert decimal_of(9.887500697198107e17) == int(9.887500697198107e17)
