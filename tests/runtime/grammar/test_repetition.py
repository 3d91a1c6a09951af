"""Counts hold exactly, however large, and cost little."""

import pytest
import xgrammar

from runtime.grammar.ebnf import Rules
from runtime.grammar.repetition import repeat
from tests.runtime.grammar.matching import compiled_rules, takes

LETTER = ("[a-z]",)
WORD = ('"ab"',)
EITHER = ("[a-z]", '"-" [0-9]')


def grammar(unit: tuple[str, ...], least: int, most: int | None) -> xgrammar.CompiledGrammar:
    rules = Rules()
    return compiled_rules(rules, f'"<" {repeat(rules, unit, least, most)} ">"')


def counts(compiled: xgrammar.CompiledGrammar, unit: str, upto: int) -> list[int]:
    """Return how many units may stand there, found in one go."""
    matcher, found = xgrammar.GrammarMatcher(compiled), list[int]()
    matcher.accept_string("<")
    for count in range(upto + 1):
        if matcher.accept_string(">"):
            found.append(count)
            matcher.rollback(1)
        if not matcher.accept_string(unit):
            break
    return found


@pytest.mark.parametrize(
    ("least", "most"),
    [
        *((0, 0), (0, 1), (1, 1), (0, 5), (3, 5), (31, 32), (32, 33), (0, 31), (0, 32), (0, 33)),
        *((0, 63), (0, 64), (0, 65), (0, 95), (0, 96), (10, 100), (63, 129), (129, 129), (7, None)),
        *((100, 1024), (1000, 1057), (0, 1023), (0, 1025), (96, None), (15, 97), (17, 98)),
    ],
)
@pytest.mark.parametrize(("unit", "text"), [(LETTER, "a"), (WORD, "ab"), (EITHER, "-7")])
def test_as_many_as_said(unit: tuple[str, ...], text: str, least: int, most: int | None) -> None:
    end = 1100 if most is None else most

    assert counts(grammar(unit, least, most), text, 1100) == list(range(least, end + 1))


@pytest.mark.parametrize("count", [32_768, 65_537, 99_999, 100_000])
def test_large_counts_hold_at_their_ends(count: int) -> None:
    least, most = grammar(LETTER, count, None), grammar(LETTER, 0, count)

    assert [takes(least, f"<{'a' * n}>") for n in (count - 1, count)] == [False, True]
    assert [takes(most, f"<{'a' * n}>") for n in (count, count + 1)] == [True, False]


def test_rules_grow_with_the_logarithm_of_a_count() -> None:
    def lines(most: int) -> int:
        rules = Rules()
        return len(rules.text(repeat(rules, LETTER, 0, most)).splitlines())

    assert lines(100_000) < 2 * lines(1000) + 150


def test_many_characters_have_a_second_reading_half_a_block_behind() -> None:
    def readings(unit: tuple[str, ...], most: int) -> int:
        return repeat(Rules(), unit, 0, most).count("|") + 1

    assert readings(LETTER, 95) == 1
    assert readings(LETTER, 96) == 2
    assert readings(WORD, 96) == 1


def test_what_is_repeated_twice_is_written_once() -> None:
    rules = Rules()
    once = repeat(rules, LETTER, 3, 1000)
    size = len(rules.text(once))

    assert repeat(rules, LETTER, 3, 1000) == once
    assert len(rules.text(once)) == size
