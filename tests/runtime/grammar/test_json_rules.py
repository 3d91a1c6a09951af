"""Rules of JSON that schemas share: every text is JSON, and keys that are named are no others."""

import json
import random

import numpy as np
import pytest
import xgrammar

from runtime.grammar.ebnf import Rules
from runtime.grammar.json_rules import MAX_BLANKS, JsonRules
from tests.runtime.grammar.matching import END, compiled_rules, takes


def rule(name: str) -> xgrammar.CompiledGrammar:
    rules = Rules()
    return compiled_rules(rules, getattr(JsonRules(rules), name))


@pytest.mark.parametrize(
    "text",
    ['""', '"é😀 b"', r'"\"\\\/\b\f\n\r\t"', r'"\u0041\uD83D\uDE00\u00ff"', '"\x7f\u2028"'],
)
def test_strings(text: str) -> None:
    assert takes(rule("string"), text)
    assert json.loads(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        '"',
        '"a',
        'a"',
        '"a"b"',
        '"\n"',
        '"\x01"',
        r'"\x41"',
        r'"\u12"',
        r'"\ud83d"',
        r'"\ud83d\u0041"',
        r'"\ude00"',
    ],
)
def test_what_is_no_string(text: str) -> None:
    assert not takes(rule("string"), text)


def test_a_key_has_one_spelling() -> None:
    key = rule("key")

    assert all(takes(key, text) for text in ('""', '"aé😀"', r'"\"\\\n"'))
    assert not any(takes(key, text) for text in (r'"\u0041"', r'"\/"', '"\n"'))


@pytest.mark.parametrize(
    "text", ["1", '{"a": [1, {"b": null}], "c": "d"}', "[ ]", "{\n}", "[true,false,-1.5e3]", '""']
)
def test_values(text: str) -> None:
    assert takes(rule("value"), text)


@pytest.mark.parametrize(
    "text", ["", "[1,]", "{,}", "{a:1}", "[1 2]", "nul", '{"a" 1}', " 1", "[1]]"]
)
def test_what_is_no_value(text: str) -> None:
    assert not takes(rule("value"), text)


def test_blanks_end() -> None:
    value = rule("value")

    assert takes(value, f"[{' ' * MAX_BLANKS}]")
    assert not takes(value, f"[{' ' * (MAX_BLANKS + 1)}]")


NAMES = ["", "a", "ab", "abc", "b", 'q"', "q\\", "é", "tab\t", "\x01", "日本"]


def test_other_keys_are_all_but_those_named() -> None:
    rules = Rules()
    other = compiled_rules(rules, JsonRules(rules).other_key(NAMES))
    others = [
        "abcd",
        "aa",
        "ac",
        "c",
        "q",
        "q\n",
        "e",
        "tab",
        "tab\n",
        "日",
        "日本語",
        "bb",
        '"',
        "ba",
    ]

    assert [n for n in NAMES + others if takes(other, json.dumps(n, ensure_ascii=False))] == others


def test_whatever_is_written_of_any_value_is_json() -> None:
    value, pick = rule("value"), random.Random(0)
    for _ in range(60):
        matcher, text = xgrammar.GrammarMatcher(value), b""
        bits = np.zeros((1, END // 32 + 1), dtype=np.int32)
        while len(text) < 4000:
            matcher.fill_next_token_bitmask(bits)
            flat = np.unpackbits(bits.view(np.uint8), bitorder="little")
            allowed = [int(k) for k in np.flatnonzero(flat) if k < 0x80 or k == END]
            ends = [k for k in allowed if k in (END, *b']}"')]
            token = pick.choice(ends if ends and pick.random() < 0.4 else allowed)
            assert matcher.accept_token(token)
            if token == END:
                json.loads(text)
                break
            text += bytes([token])
