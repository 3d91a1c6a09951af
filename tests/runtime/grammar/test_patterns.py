"""A pattern holds a string to itself, however it is spelt in JSON."""

import itertools
import json
import random
import re

import pytest

from runtime.errors import GrammarError
from runtime.grammar.ebnf import Rules
from runtime.grammar.patterns import Length, string_of_pattern, text_rule
from runtime.grammar.regex_parser import parse
from tests.runtime.grammar.matching import compiled_rules, takes


def accepted(pattern: str, texts: list[str]) -> list[str]:
    """Return the texts that a string of this pattern may be, in JSON as Python spells it."""
    rules = Rules()
    compiled = compiled_rules(rules, string_of_pattern(rules, pattern, Length()))
    return [text for text in texts if takes(compiled, json.dumps(text, ensure_ascii=False))]


def taken_as_text(pattern: str, texts: list[str]) -> list[str]:
    """Return the texts that an output of this pattern may be."""
    rules = Rules()
    compiled = compiled_rules(rules, text_rule(rules, pattern))
    return [text for text in texts if takes(compiled, text)]


TEXTS = [
    "a",
    "b",
    "ab",
    "",
    " ",
    "é",
    "日",
    '"',
    "\\",
    "\n",
    "\t",
    "-",
    "]",
    "^",
    "1",
    "_",
    "\u3000",
    "\u2028",
    '"a',
    "/",
]
# Characters that JSON escapes are left out of what these match.
NARROWER = {
    ".", r"\D", r"\S", r"\W", "[^a]", r"[^a\s]", r"[\s\S]", r"[\d\D]", r"[^\]]", r"[^\\]",
    r"[^\x61b]", r"[^\-\^]", r"[^0-9\[\]-]", r"[^\^a]", "[^ -~]", r"[\S ]", r"[\W_]", r"[\D1]",
    r"[\S]", r"[\Da-]", r"[\W^b]", r"[-\S]", r"[^\Wa]", r"[^\W_]", r"[^\D]", r"[^\S\n]",
    r"[^\D\W]", r"[^\s-]",
}  # fmt: skip
PATTERNS = [
    *sorted(NARROWER),
    "a", "a|b", "^a$|^b$", "^(a|b)$", "^a|b$", "a?", "(?:ab)?", r"\"", '"', r"\\", r"\n", r"\t",
    '["a]', r'["\\]', r"[\n\t]", r"[ -~]", r"[!-#]", r"[\x20-\x7e]", r"\x61", "\\u00e9", "[à-ü]",
    r"[\u00e0-\u00fc日]", r"\d", r"\w", r"[\w-]", r"[a\-]", r"[\]a]", r"[\^]", "[-a]", "[a-]",
    r"\x61b?", r"\u0061b?", r"[\x61b]", r"\x2e", r"\/", r'"a', r'(?:"|a)+', r"[\[-^]", r"[\s]",
    r"\s?", r"[a^]", r"[\d\]]", r"[--/]", r"\^", r"\]", r"\-",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_strings_match_as_they_do_in_python_with_ascii_classes_and_without(pattern: str) -> None:
    wanted = [t for t in TEXTS if re.fullmatch(pattern, t, re.ASCII) and re.fullmatch(pattern, t)]
    if pattern == ".":
        wanted.remove("\u2028")  # The end of a line to ECMA-262.
    if pattern in NARROWER or r"\s" in pattern:
        wanted = [text for text in wanted if json.dumps(text, ensure_ascii=False) == f'"{text}"']
    if re.search(r"\\S|\[\^.*\\s", pattern) and pattern != r"[\s\S]":
        wanted = [text for text in wanted if not text.isspace() or text == " "]

    assert accepted(pattern, TEXTS) == wanted


def some_pattern(pick: random.Random, depth: int) -> str:
    kind = pick.random()
    if depth == 0 or kind < 0.25:
        return pick.choice(["x", "y", "[xy]", "[^x]", '"'])
    if kind < 0.5:
        return some_pattern(pick, depth - 1) + some_pattern(pick, depth - 1)
    if kind < 0.7:
        return f"({some_pattern(pick, depth - 1)}|{some_pattern(pick, depth - 1)})"
    how = pick.choice(["?", "*", "+", "{0,2}", "{1,2}", "{2}"])
    return f"({some_pattern(pick, depth - 1)}){how}"


def test_whatever_the_pattern_it_matches_what_it_says() -> None:
    texts = ["".join(some) for n in range(4) for some in itertools.product('xy"', repeat=n)]
    pick = random.Random(0)
    for _ in range(150):
        pattern = some_pattern(pick, 4)
        # A set that excludes goes without quotes, too.
        strict = pattern.replace("[^x]", "y")
        wanted = [text for text in texts if re.fullmatch(strict, text)]
        assert accepted(pattern, texts) == wanted, pattern


@pytest.mark.parametrize(("pattern", "wrong"), [("^a(xy+)?$", "ay"), ("^((x|(x|))|x(x|))$", "xxx")])
def test_what_the_compilers_automata_take_wrongly_is_not_taken(pattern: str, wrong: str) -> None:
    assert not re.fullmatch(pattern, wrong)
    assert accepted(pattern, [wrong]) == []


@pytest.mark.parametrize("pattern", ["[[:alpha:]]", "x[a[:^digit:]]", "[[.hyphen.]]", "[[=a=]]+"])
def test_posix_classes_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="POSIX class"):
        parse(pattern, spelt=True)


@pytest.mark.parametrize("pattern", ["[:alpha:]", r"\[[:a]", "[[:a]", r"[\[:alpha:]"])
def test_what_only_looks_like_one_is_not(pattern: str) -> None:
    parse(pattern, spelt=True)


def test_what_is_escaped_counts_beside_an_opposite() -> None:
    assert accepted(r'[\S\n"]', TEXTS) == [
        text for text in TEXTS if len(text) == 1 and text not in " \\\t\u3000\u2028"
    ]
    assert accepted(r"[\x01]|[\v]", ["\x01", "\v", "", "a"]) == ["\x01", "\v"]
    assert accepted(r"[^a-\d]", ["a", "-", "5", "b"]) == ["b"]


@pytest.mark.parametrize(("pattern", "wrong"), [(r"^[^\W_]{2}(-[^\W_]{2,3})?$", "enU")])
def test_a_set_that_excludes_an_opposite_is_said_as_rules(pattern: str, wrong: str) -> None:
    assert accepted(pattern, [wrong, "en", "en-US", "e_"]) == ["en", "en-US"]


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        *((r"a\b", r"\b"), (r"(a)\1", r"\1"), (r"\p{L}", r"\p"), ("a[", "["), (r"\cA", r"\c")),
        *((r"[\p{L}]", r"\p"), (r"x[^\s\S]", r"[^\s\S]"), ("[]", "[]"), (r"[\cA]", r"\c")),
        *((r"\x4", r"\x"), ("a\\", "\\"), (r"\A", r"\A"), ("[^z-a]", "z-a"), ("a^b", "^")),
        *(("(?=a)b", "(?="), ("(?<!a)b", "(?<!"), ("(?i)a", "(?i)"), ("a{2}{3}", "{"), ("*", "*")),
        *(("a{3,2}", "{3,2}"), ("a{,2}", "{,"), (r"\ud800", r"\ud800"), ("a)", ")"), ("a++", "+")),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(pattern: str, part: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(f"the pattern has {part!r}, ")):
        parse(pattern, spelt=True)


BLANKS = [chr(code) for code in range(0x10000) if chr(code).isspace()] + ["\ufeff"]


@pytest.mark.parametrize("pattern", [r"\S", r"[^\s]", r"[\S]", r"[^\s-]", r"[^-\s]", r"[a\S^]"])
def test_what_is_no_blank_is_none_of_unicodes_either(pattern: str) -> None:
    texts = [*BLANKS, "a", "é", "\u2010", "😀"]

    assert accepted(pattern, texts) == ["a", "é", "\u2010", "😀"]
    assert taken_as_text(pattern, texts) == ["a", "é", "\u2010", "😀"]


def test_text_is_held_to_sets_with_opposites() -> None:
    texts = [*BLANKS, "a", "-", "^", "+", ","]

    assert taken_as_text(r"[\S\u3000 ]", texts) == [" ", "\u3000", "a", "-", "^", "+", ","]
    assert taken_as_text(r"[\^\S]", texts) == ["a", "-", "^", "+", ","]
    assert taken_as_text(r"[\s\S]", texts) == texts


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"[\^]", r"[\^ab]", r"[\x5e-]", r"[\u005E\]]", r"[\^^a]", r"[\^\^]", r"[\^-b]", r"[\^-]"),
        *(".", "a.", r"\.", "[.]", r"[^\^]", r"[a\^]", "[^^]", r"\^"),
        *(r"\x61b", r"[\x61b]", r"[^\x61b]", r"[\x30-\x39A]", r"\x61\x62", r"[\x5eb]"),
    ],
)
def test_text_is_held_to_what_a_pattern_says(pattern: str) -> None:
    texts = [*(chr(code) for code in range(1, 128)), "é", "ab", "a\n", "a."]
    wanted = [text for text in texts if re.fullmatch(pattern, text)]

    assert taken_as_text(pattern, texts) == [t for t in wanted if t != "\r" or pattern != "."]


def test_a_pattern_of_text_has_no_posix_class() -> None:
    with pytest.raises(GrammarError, match="POSIX"):
        parse("[[:alpha:]]", spelt=False)
