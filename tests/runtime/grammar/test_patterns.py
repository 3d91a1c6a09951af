"""A pattern holds a string to itself, however it is spelt in JSON."""

import itertools
import json
import random
import re

import pytest
import xgrammar

from runtime.errors import GrammarError
from runtime.grammar.patterns import check_pattern, json_pattern, text_pattern

_BYTES = [bytes([value]) for value in range(256)]
END = len(_BYTES)
COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo([*_BYTES, b"</s>"], xgrammar.VocabType.RAW, stop_token_ids=[END]),
    max_threads=1,
    cache_enabled=False,
)


def accepted(pattern: str, texts: list[str]) -> list[str]:
    """Return the texts that a string of this pattern may be, in JSON as Python spells it."""
    schema = json.dumps({"type": "string", "pattern": json_pattern(pattern)})
    compiled = COMPILER.compile_json_schema(schema)
    return [text for text in texts if takes(compiled, json.dumps(text, ensure_ascii=False))]


def taken_as_text(pattern: str, texts: list[str]) -> list[str]:
    """Return the texts that an output of this pattern may be."""
    compiled = COMPILER.compile_regex(text_pattern(pattern))
    return [text for text in texts if takes(compiled, text)]


def takes(compiled: xgrammar.CompiledGrammar, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(compiled)
    return matcher.accept_string(text) and matcher.accept_token(END)


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
def test_strings_match_as_they_do_in_python(pattern: str) -> None:
    wanted = [text for text in TEXTS if re.fullmatch(pattern, text, re.ASCII)]
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
        check_pattern(pattern)
    with pytest.raises(GrammarError, match="POSIX class"):
        json_pattern(pattern)


@pytest.mark.parametrize("pattern", ["[:alpha:]", r"\[[:a]", "[[:a]", r"[\[:alpha:]", "a[", "[]"])
def test_what_only_looks_like_one_is_not(pattern: str) -> None:
    check_pattern(pattern)


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
        *((r"[^\W-a]", r"[^\W-a]"), (r"\x4", r"\x"), ("a\\", "\\"), (r"\A", r"\A")),
        ("[^z-a]", "z-a"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(pattern: str, part: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(f"the pattern has {part!r}, which is not")):
        json_pattern(pattern)


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
        text_pattern("[[:alpha:]]")
