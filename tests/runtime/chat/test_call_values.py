"""Tests of runtime.chat.call_values: the readings of a value, with a validator as judge."""

import json
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from runtime.chat.call_values import argument_json, fitted, is_certain_text, is_json
from runtime.chat.schema_check import MOST_STEPS
from tests.runtime.chat.schemas import near_value, random_root

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BOOLEAN, NULL = {"type": "boolean"}, {"type": "null"}
ITEMS = {"type": "array", "items": INTEGER}
OBJECT = {"type": "object", "properties": {"n": INTEGER, "s": STRING}, "required": ["n"]}
LOOP: dict[str, Any] = {"$ref": "#/$defs/l", "$defs": {"l": {"anyOf": [{"$ref": "#/$defs/l"}] * 2}}}


def read(text: str, schema: Any, *, is_text: bool) -> str:
    return argument_json(text, schema, root=schema, is_text=is_text)


def spelled(random: Random, value: Any) -> str:
    """Return how a model may write a value, or what contradicts it."""
    return value if isinstance(value, str) else json.dumps(value)


def test_the_reading_that_the_schema_allows_is_taken_and_else_the_models_own() -> None:
    changed = 0
    for seed in range(1500):
        random = Random(seed)
        root = random_root(random)
        text, is_text = spelled(random, near_value(random)), random.random() < 0.5
        readings: list[Any] = [text]
        if is_json(text):
            readings.insert(1 if is_text else 0, json.loads(text))
        valid = Draft202012Validator(root).is_valid

        found = json.loads(read(text, root, is_text=is_text))

        allowed = [reading for reading in readings if valid(reading)]
        if is_text and is_certain_text(root, root):
            assert found == text, seed
        elif allowed:
            assert (found, type(found) is bool) == (allowed[0], type(allowed[0]) is bool), seed
            changed += allowed[0] != readings[0]
        else:
            assert found == readings[0] or valid(found), seed
    assert changed > 60


def test_a_text_that_is_certain_has_no_other_reading() -> None:
    certain = 0
    for seed in range(1000):
        random = Random(seed)
        root = random_root(random)
        if is_certain_text(root, root):
            certain += 1
            text = spelled(random, near_value(random))
            others = [json.loads(text)] if is_json(text) else []
            valid = Draft202012Validator(root).is_valid
            # A string in a string is only looked for where a schema lists its values.
            assert valid(text) or not any(valid(o) for o in others if not isinstance(o, str)), seed
    assert certain > 100


@pytest.mark.parametrize(
    ("text", "is_text", "schema", "expected"),
    [
        ("12345", False, STRING, '"12345"'),
        ("1.50e3", False, STRING, '"1.50e3"'),
        ("true", False, STRING, '"true"'),
        ("null", False, STRING, '"null"'),
        ('{"a": [1, 2]}', False, STRING, r'"{\"a\": [1, 2]}"'),
        ('"in quotes"', False, STRING, '"in quotes"'),
        ('"in quotes"', True, STRING, r'"\"in quotes\""'),
        ("12345", True, INTEGER, "12345"),
        (" 12345\n", True, INTEGER, "12345"),
        ('"12345"', False, INTEGER, "12345"),
        ("5.0", False, INTEGER, "5"),
        ("5.0", True, INTEGER, "5"),
        ("5.0", False, NUMBER, "5.0"),
        ("5.5", False, INTEGER, "5.5"),
        ("5.5", True, INTEGER, '"5.5"'),
        ("abc", False, INTEGER, '"abc"'),
        ("True", False, BOOLEAN, "true"),
        ("False", True, BOOLEAN, "false"),
        ("None", True, NULL, "null"),
        ("True", False, STRING, '"True"'),
        ("1", True, BOOLEAN, '"1"'),
        ("null", True, {"type": ["integer", "null"]}, "null"),
        ("null", True, {"type": ["string", "null"]}, '"null"'),
        ("null", False, {"type": ["string", "null"]}, "null"),
        ("5", True, {"anyOf": [INTEGER, STRING]}, '"5"'),
        ("5", False, {"anyOf": [INTEGER, STRING]}, "5"),
        ("5", False, {"oneOf": [{"type": "integer", "minimum": 10}, STRING]}, '"5"'),
        ("2", True, {"enum": [1, 2]}, "2"),
        ("2", False, {"enum": ["1", "2"]}, '"2"'),
        ('"a"', True, {"enum": ["a", "b"]}, '"a"'),
        ("1", True, {"const": 1}, "1"),
        ("[1, 2]", True, ITEMS, "[1, 2]"),
        ('["1", 2]', False, ITEMS, "[1, 2]"),
        ('["1", "x"]', False, ITEMS, '["1", "x"]'),
        ('"[1]"', False, ITEMS, "[1]"),
        ('{"n": "1", "s": 2, "t": 1.50}', False, OBJECT, '{"n": 1, "s": "2", "t": 1.50}'),
        ('{"n": "1", "s": 2}', True, OBJECT, '{"n": 1, "s": "2"}'),
        ('{"s": 2}', False, OBJECT, '{"s": 2}'),
        ('["1"]', False, {"anyOf": [ITEMS, NULL]}, "[1]"),
        ('["1"]', False, {"anyOf": [ITEMS, {"items": {"enum": [1]}}]}, "[1]"),
        ("5", True, {"$ref": "#/$defs/i", "$defs": {"i": INTEGER}}, "5"),
        ("5", False, {"allOf": [{"title": "t"}, STRING]}, '"5"'),
        ("5", True, LOOP, '"5"'),
        ("5", False, False, "5"),
        ("5", True, True, '"5"'),
    ],
    ids=str,
)
def test_these_are_read_so(text: str, is_text: bool, schema: Any, expected: str) -> None:
    assert read(text, schema, is_text=is_text) == expected


def test_union_branches_that_disagree_change_nothing() -> None:
    first = {"type": "object", "properties": {"a": INTEGER, "b": STRING}}
    other = {"type": "object", "properties": {"a": BOOLEAN, "b": INTEGER}}
    second = {"type": "object", "properties": {"a": STRING, "b": INTEGER}}
    text = '{"a": "1", "b": "1"}'

    assert fitted(text, first, root=first) == '{"a": 1, "b": "1"}'
    assert read(text, {"anyOf": [first, other]}, is_text=False) == '{"a": 1, "b": "1"}'
    assert read(text, {"anyOf": [first, second]}, is_text=False) == text


def test_a_value_that_takes_too_long_is_kept() -> None:
    text = json.dumps(["1"] * MOST_STEPS)

    assert read(text, ITEMS, is_text=False) == text


def test_a_long_text_is_read_as_its_schema_says() -> None:
    text = json.dumps([1] * 10**6)

    assert json.loads(read(text, STRING, is_text=False)) == text


@pytest.mark.parametrize("text", ["NaN", "1e400", "[" * 9000, "", "{'a': 1}"])
def test_what_no_client_could_decode_is_text(text: str) -> None:
    assert not is_json(text)
    assert read(text, INTEGER, is_text=False) == json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize(
    ("schema", "certain"),
    [
        (True, True),
        ({}, True),
        (STRING, True),
        ({"type": ["string"], "maxLength": 9, "pattern": "a"}, True),
        ({"type": ["string", "null"]}, True),
        ({"anyOf": [STRING, NULL]}, True),
        ({"anyOf": [{"type": "string", "maxLength": 3}, INTEGER]}, False),
        ({"anyOf": [INTEGER, NULL]}, False),
        ({"type": ["string", "integer"], "minLength": 3}, False),
        ({"type": "string", "enum": ["a"]}, False),
        ({"const": "a"}, False),
        (INTEGER, False),
        ({"$ref": "#/$defs/s", "$defs": {"s": STRING}}, True),
        ({"$ref": "#/$defs/s", "$defs": {"s": INTEGER}}, False),
        ({"$ref": "#"}, False),
    ],
    ids=str,
)
def test_a_string_is_certain_where_its_schema_leaves_nothing_else(
    schema: Any, certain: bool
) -> None:
    assert is_certain_text(schema, schema) == certain
