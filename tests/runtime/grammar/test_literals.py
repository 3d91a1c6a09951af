"""Named values are those that may be written, and what they share is written once."""

import json
from typing import Any

import pytest

from runtime.errors import GrammarError
from runtime.grammar.ebnf import Rules
from runtime.grammar.literals import named_values, one_of, string_spelling
from tests.runtime.grammar.matching import compiled_rules, takes

BLANKS = "[ ]*"


def taken(values: list[Any], texts: list[str]) -> list[str]:
    rules = Rules()
    grammar = compiled_rules(rules, named_values(rules, values, BLANKS))
    return [text for text in texts if takes(grammar, text)]


VALUES = ["a", "ab", "", 'x"y', "tab\t", "é😀", None, True, False, 0, -7, 1.5, 1e300, [], {}]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_written_as_json_has_it(value: Any) -> None:
    texts = [json.dumps(each, ensure_ascii=False) for each in VALUES]

    assert taken([value], texts) == [json.dumps(value, ensure_ascii=False)]


def test_all_that_are_named_may_be_written_and_no_others() -> None:
    names = ["", "a", "aa", "ab", "abba", "b", "ba", "alpha", "alphabet", "é", "éa", 'a"', "a\\"]
    others = ["abb", "aaa", "alpine", "alphabets", "bb", "e", "\\"]
    texts = [json.dumps(name, ensure_ascii=False) for name in names + others]

    assert taken(names, texts) == texts[: len(names)]
    assert taken([*names, *names], texts) == texts[: len(names)]


def test_arrays_and_objects_have_blanks_between_their_parts() -> None:
    value = {"a": [1, "x"], "b": {}}
    right = ['{"a":[1,"x"],"b":{}}', '{ "a": [1, "x" ], "b": { } }']
    wrong = ['{"b":{},"a":[1,"x"]}', '{"a":[1],"b":{}}', '{"a":[1,"x"]}', ' {"a":[1,"x"],"b":{}}']

    assert taken([value], right + wrong) == right


@pytest.mark.parametrize(
    "names",
    [
        [f"this is the name of option {k} of all of them" for k in range(2000)],
        [f"city_{k}" for k in range(2000)],
    ],
)
def test_what_many_names_share_is_written_once(names: list[str]) -> None:
    rules = Rules()
    named = named_values(rules, names, BLANKS)
    grammar = compiled_rules(rules, named)

    assert len(rules.text(named)) < 1000
    assert takes(grammar, json.dumps(names[777]))
    assert not takes(grammar, json.dumps(names[777] + "0"))


def test_a_tree_of_names_has_no_depth_of_recursion() -> None:
    rules = Rules()
    grammar = compiled_rules(rules, one_of(rules, ["a" * n for n in range(1, 300)]))

    assert takes(grammar, "a" * 299)
    assert not takes(grammar, "a" * 300)


def test_names_that_are_too_long_together_are_refused() -> None:
    names = [f"{k}{k * 7919 % 10007}".ljust(90, chr(0x61 + k % 26)) for k in range(3000)]

    with pytest.raises(GrammarError, match="more than 131072 characters that differ"):
        one_of(Rules(), names)


def test_values_nested_too_deeply_are_refused() -> None:
    value: Any = 1
    for _ in range(100):
        value = [value]

    with pytest.raises(GrammarError, match="nested more than 64 deep"):
        named_values(Rules(), [value], BLANKS)


def test_half_a_character_is_refused() -> None:
    with pytest.raises(GrammarError, match="half of a character"):
        string_spelling("a\ud83d")
    assert string_spelling('"\n\x01é') == '\\"\\n\\u0001é'
