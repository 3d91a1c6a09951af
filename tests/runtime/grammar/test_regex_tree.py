"""The shape of patterns: lengths, and in how many ways a text can be read at a time."""

import re

import pytest

from runtime.grammar.regex_parser import parse
from runtime.grammar.regex_tree import ENDLESS, Characters, Repeat, facts, solid


@pytest.mark.parametrize(
    ("pattern", "shortest", "longest"),
    [
        ("abc", 3, 3),
        ("a?b*", 0, ENDLESS),
        ("(ab|c){2,5}", 2, 10),
        ("", 0, 0),
        ("a{3}b{0,4}", 3, 7),
        ("(a?){2,9}", 0, 9),
        ("(|a)b", 1, 2),
    ],
)
def test_the_length_of_what_a_pattern_matches(pattern: str, shortest: int, longest: int) -> None:
    shape = facts(parse(pattern, spelt=False))

    assert (shape.shortest, shape.longest) == (shortest, longest)


FEW = [
    "[a-z]{1,63}",
    r"([a-z]{1,63}\.){1,99}[a-z]+",
    "a*b*",
    r"\d+-\d+",
    "(ab?)*",
    ".*x",
    "(a|b)*c",
]
MANY = [
    "(a{1,99}){1,99}",
    "a{0,300}[ab]{0,400}",
    ".*x.*",
    "[a-z]*[a-z0-9]{0,500}",
    "(a|ab|b)*",
    "(a*b?)*",
    "(a+|b+)+c",
]


@pytest.mark.parametrize("pattern", FEW)
def test_few_readings_are_known(pattern: str) -> None:
    assert facts(parse(pattern, spelt=False)).readings <= 64


@pytest.mark.parametrize("pattern", MANY)
def test_many_readings_are_known(pattern: str) -> None:
    assert facts(parse(pattern, spelt=False)).readings > 256


@pytest.mark.parametrize(
    ("pattern", "part"),
    [("a*a", "a{1,}"), ("a{2}a?a{3}", "a{5,6}"), ("(a+)*", "a*"), ("(a*)+", "a*")],
)
def test_the_same_set_repeated_twice_is_repeated_once(pattern: str, part: str) -> None:
    assert parse(pattern, spelt=False) == parse(part, spelt=False)


def test_a_set_is_one_choice() -> None:
    assert parse("a|[b-d]|é", spelt=False) == Characters(((0x61, 0x64), (0xE9, 0xE9)))
    assert parse("aa", spelt=False) != Repeat(parse("a", spelt=False), 2, 2)


@pytest.mark.parametrize("pattern", ["a?b?", "(a|b?c?){0,2}", "a*", "(a?b?){2}"])
def test_a_solid_pattern_matches_all_but_nothing(pattern: str) -> None:
    node = parse(pattern, spelt=False)

    assert facts(node).shortest == 0
    assert facts(solid(node)).shortest == 1
    assert facts(solid(node)).longest == facts(node).longest
    assert re.fullmatch(pattern, "")
