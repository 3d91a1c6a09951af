"""An automaton takes what its pattern matches, and is left out where it would be large."""

import itertools
import random
import re

import pytest

from runtime.grammar.ebnf import Ranges, Rules, characters
from runtime.grammar.regex_automaton import automaton_rule
from runtime.grammar.regex_parser import parse
from tests.runtime.grammar.matching import compiled_rules, takes

TEXTS = ["".join(some) for n in range(6) for some in itertools.product("ab", repeat=n)]


def spelt(ranges: Ranges) -> list[str]:
    return [characters(ranges)]


PATTERNS = [
    "(a|ab|b)*",
    "(a*b?)*a",
    ".*ab.*",
    "(a|aa){0,3}",
    "(a{1,2}){2}",
    "a*(ab)?b{2,}",
    "(a|b)*?b",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_takes_what_the_pattern_matches(pattern: str) -> None:
    rules = Rules()
    rule = automaton_rule(rules, parse(pattern, spelt=False), spelt)
    assert rule is not None
    grammar = compiled_rules(rules, rule)

    assert [t for t in TEXTS if takes(grammar, t)] == [t for t in TEXTS if re.fullmatch(pattern, t)]


def test_it_does_so_whatever_the_pattern() -> None:
    pick = random.Random(0)

    def some(depth: int) -> str:
        if not depth or pick.random() < 0.2:
            return pick.choice(["a", "b", "[ab]"])
        first, second = some(depth - 1), some(depth - 1)
        count = pick.choice(["?", "*", "+", "{0,2}", "{2}"])
        return pick.choice([first + second, f"({first}|{second})", f"({first}){count}"])

    for _ in range(40):
        pattern, rules = some(4), Rules()
        rule = automaton_rule(rules, parse(pattern, spelt=False), spelt)
        assert rule is not None
        grammar = compiled_rules(rules, rule)
        wanted = [text for text in TEXTS if re.fullmatch(pattern, text)]
        assert [text for text in TEXTS if takes(grammar, text)] == wanted, pattern


@pytest.mark.parametrize("pattern", ["(a{1,99}){1,99}", "(a|b)*a(a|b){12}"])
def test_one_with_too_many_states_is_none(pattern: str) -> None:
    assert automaton_rule(Rules(), parse(pattern, spelt=False), spelt) is None
