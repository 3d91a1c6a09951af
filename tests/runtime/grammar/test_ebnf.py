"""Rules as text: what is equal is one rule, and sets of characters are exact."""

import pytest

from runtime.grammar.ebnf import (
    Ranges,
    Rules,
    characters,
    common,
    complement,
    either,
    is_misread,
    literal,
    merged,
    sequence,
    without,
)
from tests.runtime.grammar.matching import allowed_tokens, compiled_rules, takes


def test_equal_bodies_are_one_rule() -> None:
    rules = Rules()

    first, other, again = (
        rules.add(hint, body) for hint, body in (("a", '"x"'), ("b", '"y"'), ("c", '"x"'))
    )

    assert first == again != other
    assert rules.text(first).count('"x"') == 1


def test_a_name_may_be_used_before_it_is_defined() -> None:
    rules = Rules()
    name = rules.reserve("list")
    rules.define(name, f'("" | "a" {name})')

    grammar = compiled_rules(rules, name)

    assert [text for text in ("", "aaa", "ab") if takes(grammar, text)] == ["", "aaa"]


@pytest.mark.parametrize(
    "text", ['a"b\\c', "é\n\t\r😀", "[a-z]", "(a | b)* # no comment", "\u2028"]
)
def test_a_literal_is_its_text(text: str) -> None:
    grammar = compiled_rules(Rules(), literal(text))

    assert takes(grammar, text)
    assert not takes(grammar, text[:-1])


SPECIAL = '^-]\\[a"\n\x01é😀'


@pytest.mark.parametrize("character", SPECIAL)
def test_a_set_has_what_it_lists(character: str) -> None:
    code = ord(character)
    grammar = compiled_rules(Rules(), characters([(code, code), (0x7A, 0x7B)]))

    assert [c for c in SPECIAL + "z{y" if takes(grammar, c)] == [character, "z", "{"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([(5, 9), (1, 3)], ((1, 3), (5, 9))),
        ([(1, 3), (4, 6), (2, 5)], ((1, 6),)),
        ([(7, 7), (7, 7)], ((7, 7),)),
        ([], ()),
    ],
)
def test_ranges_are_merged(given: Ranges, found: Ranges) -> None:
    assert merged(given) == found


def test_sets_of_ranges() -> None:
    letters, rest = ((0x41, 0x5A),), ((0, 0x40), (0x5B, 0x10FFFF))

    assert complement(letters) == rest
    assert complement(rest) == letters
    assert complement(()) == merged([(0, 0x10FFFF)])
    assert common(((1, 5), (9, 12)), ((4, 10),)) == ((4, 5), (9, 10))
    assert without(((1, 9),), ((3, 4), (9, 20))) == ((1, 2), (5, 8))


def test_expressions_of_one_part_have_no_brackets() -> None:
    assert either(["a", "a"]) == "a"
    assert either(["a", "b"]) == "(a | b)"
    assert sequence(["a", '""', "b"]) == "a b"
    assert sequence(['""']) == '""'


EITHER = '("" | "cn")'
WIDE: list[Ranges] = [
    ((0x4E00, 0x9FFF),),
    ((0xE0, 0xFC),),
    ((0x20, 0x2027), (0x202A, 0x10FFFF)),
    ((0x5D, 0x10FFFF),),
    ((0x100, 0x17F), (0x370, 0x1FFF)),
    ((0x1F600, 0x1F64F),),
    ((0x430, 0x44F),),
]


@pytest.mark.parametrize("ranges", WIDE)
def test_a_set_behind_a_rule_lets_no_token_through_that_may_not_follow(ranges: Ranges) -> None:
    """Tokens of two characters are judged by what follows the rule, before they are taken."""
    rules = Rules()
    part = rules.add("set", characters(ranges)) if is_misread(ranges) else characters(ranges)
    first, last = chr(ranges[0][0]), chr(ranges[-1][1])
    tokens = ["cn" + chr(code) for code in range(1, 128)] + ["cn" + first, "cn" + last]
    grammar = rules.text(f'"a" {rules.add("m", EITHER)} {part} "b"')

    wanted = [t for t in tokens if any(low <= ord(t[2]) <= high for low, high in ranges)]
    assert allowed_tokens(grammar, "a", tokens) == wanted


def test_few_sets_are_misread() -> None:
    assert [ranges for ranges in WIDE if is_misread(ranges)] == WIDE[4:]
