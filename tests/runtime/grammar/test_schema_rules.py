"""Schemas as grammars: each keyword holds exactly, whatever its bound, or is refused by name."""

import json
import re
from typing import Any

import pytest

from runtime.errors import GrammarError
from runtime.grammar.schema_rules import schema_text
from tests.runtime.grammar.matching import compiled, taken, takes

BOUNDS = [0, 1, 127, 128, 129, 255, 1000, 4097, 100_000]


@pytest.mark.parametrize(
    ("bound", "letter"), [*((b, c) for b in BOUNDS[:-1] for c in 'aé😀"\n\\'), (100_000, "é")]
)
def test_bounds_of_a_length_hold(bound: int, letter: str) -> None:
    texts = [letter * n for n in (bound - 1, bound, bound + 1) if n >= 0]
    sizes = [len(text) for text in texts]

    def lengths(rules: dict[str, int]) -> list[int]:
        return [len(text) for text in taken({"type": "string", **rules}, texts)]

    assert lengths({"maxLength": bound}) == [n for n in sizes if n <= bound]
    assert lengths({"minLength": bound}) == [n for n in sizes if n >= bound]
    assert lengths({"minLength": bound, "maxLength": bound}) == [bound]


@pytest.mark.parametrize("bound", [128, 129, 500, 100_000])
def test_a_bounded_string_has_no_quotes_and_no_control_characters(bound: int) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": bound}}}
    grammar = compiled(schema_text(schema))

    assert takes(grammar, '{"a": "one\\n\\"two\\""}')
    for text in ('{"a": "one"two"}', '{"a": "one\ntwo"}', '{"a": "\\"}', '{"a": "\t"}'):
        assert not takes(grammar, text)


@pytest.mark.parametrize("bound", BOUNDS[:-2])
def test_bounds_of_items_hold(bound: int) -> None:
    arrays = [[1] * n for n in (bound - 1, bound, bound + 1) if n >= 0]
    sizes = [len(array) for array in arrays]

    def lengths(rules: dict[str, Any]) -> list[int]:
        return [
            len(a) for a in taken({"type": "array", "items": {"type": "integer"}, **rules}, arrays)
        ]

    assert lengths({"maxItems": bound}) == [n for n in sizes if n <= bound]
    assert lengths({"minItems": bound}) == [n for n in sizes if n >= bound]


@pytest.mark.parametrize("bound", [1, 129, 1000])
def test_bounds_of_other_properties_hold(bound: int) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": bound}
    objects = [{f"k{k}": None for k in range(n)} for n in (bound, bound + 1)]

    assert taken(schema, objects) == objects[:1]


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("^[a-z]{3,500}$", ["abc", "x" * 500], ["ab", "x" * 501, "AB"]),
        ("^(ab){200}$", ["ab" * 200], ["ab" * 199, "ab" * 201]),
        ("^.{129}$", ["é" * 129], ["é" * 128, "é" * 130]),
        (r"^\d{1,4}-\d{300,}$", ["1-" + "2" * 300], ["1-" + "2" * 299]),
        (
            "^([a-z]{1,63}\\.){1,200}[a-z]{2,}$",
            ["a.bc", "ab." * 200 + "cd"],
            ["ab." * 201 + "cd", "ab"],
        ),
    ],
)
def test_counts_in_patterns_hold(pattern: str, right: list[str], wrong: list[str]) -> None:
    assert taken({"type": "string", "pattern": pattern}, right + wrong) == right


@pytest.mark.parametrize(
    ("rules", "right", "wrong"),
    [
        ({"pattern": "^[a-z]+$", "maxLength": 3}, ["a", "abc"], ["", "abcd"]),
        ({"pattern": "^[a-z]{2,9}$", "minLength": 4}, ["abcd", "a" * 9], ["abc", "a" * 10]),
        ({"pattern": "^(ab|c)$", "maxLength": 2, "minLength": 1}, ["ab", "c"], ["a"]),
        ({"pattern": "^a$", "maxLength": 200}, ["a"], ["aa"]),
    ],
)
def test_a_length_beside_a_pattern(
    rules: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    assert taken({"type": "string", **rules}, right + wrong) == right


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (True, [1, "a", None, [{}]], []),
        ({"type": ["string", "null"], "maxLength": 1}, ["a", None], ["ab", 1]),
        ({"type": "integer", "minimum": 2, "exclusiveMaximum": 4}, [2, 3], [1, 4, 2.5]),
        ({"type": "number", "multipleOf": 3}, [0, 3, -6], [1, 1.5]),
        ({"type": ["integer", "number"], "maximum": 1}, [1, 0.5], [2]),
        (
            {"type": "array", "prefixItems": [{"type": "null"}, True]},
            [[], [None], [None, 1]],
            [[1], [None, 1, 2]],
        ),
        (
            {"prefixItems": [True], "items": {"type": "null"}, "minItems": 2},
            [[1, None]],
            [[1], [1, 2]],
        ),
        ({"prefixItems": [True, False], "items": True}, [[], [1]], [[1, 2]]),
        ({"prefixItems": [True, True], "maxItems": 1}, [[], [1]], [[1, 2]]),
        ({"type": "array", "items": False}, [[]], [[1]]),
        (
            {"items": [{"type": "null"}], "additionalItems": {"type": "string"}},
            [[None, "a"]],
            [[None, 1]],
        ),
        ({"type": "object"}, [{}, {"a": {"b": [1]}}], [[], 1]),
        ({"properties": {"a": False, "b": True}}, [{}, {"b": 1}], [{"a": 1}, {"c": 1}]),
        ({"required": ["a"]}, [{"a": 1}, {"a": 1, "b": 2}], [{}, {"b": 1}]),
        (
            {"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "string"}},
            [{"a": None, "b": "x"}, {"b": "x"}, {"aa": ""}],
            [{"a": "x"}, {"b": 1}],
        ),
        ({"patternProperties": {"^x-": {"type": "null"}}}, [{}], [{"y": None}, {"x-a": 1}]),
        (
            {
                "patternProperties": {"^x-[a-z]{1,200}$": {"type": "null"}},
                "additionalProperties": False,
            },
            [{"x-a": None}],
            [{"x-a": 1}, {"x-": None}],
        ),
        ({"type": "object", "propertyNames": {"maxLength": 2}}, [{"ab": 1}, {}], [{"abc": 1}]),
        ({"propertyNames": {"enum": ["a", 1]}}, [{"a": 1}], [{"b": 1}]),
        (
            {"propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"pattern": "^a+$"}}},
            [{"aa": 1}],
            [{"b": 1}],
        ),
        ({"type": "object", "propertyNames": False}, [{}], [{"a": 1}]),
        ({"anyOf": [False, {"type": "null"}, {"const": 3}]}, [None, 3], [1]),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, [None, 3], ["a"]),
        (
            {
                "items": {"$ref": "#/$defs/a/oneOf/1"},
                "$defs": {"a": {"oneOf": [{"type": "integer"}, {"type": "null"}]}},
            },
            [[None]],
            [["a"]],
        ),
        (
            {"oneOf": [{"type": "array", "items": {"$ref": "#/oneOf/1"}}, {"type": "null"}]},
            [[None], None],
            [[1]],
        ),
        ({"allOf": [{"enum": ["a", 1]}]}, ["a", 1], ["b"]),
        (
            {"$ref": "#/$defs/t", "$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}},
            [[], [[], [[]]]],
            [[1]],
        ),
        ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "null"}}}, [None], [1]),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "x"]),
        ({"type": "string", "format": "no such", "maxLength": 1}, ["a"], ["ab"]),
        ({"enum": ["a", "b"], "pattern": "^a"}, ["a"], ["b"]),
        ({"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}]),
        (
            {"properties": {"größe": {"enum": ["ä", "日本", '"']}}},
            [{"größe": "日本"}, {"größe": '"'}],
            [{"größe": "x"}],
        ),
    ],
)
def test_schemas_take_what_fits(schema: Any, right: list[Any], wrong: list[Any]) -> None:
    assert taken(schema, right + wrong) == right


def test_a_named_property_has_no_other_spelling() -> None:
    schema = {"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "string"}}
    grammar = compiled(schema_text(schema))

    assert not takes(grammar, '{"\\u0061": "x"}')
    assert takes(grammar, '{"\\n": "x"}')


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"properties": {"a": {"pattern": "^(?=a)"}}},
            "#/properties/a: the schema keyword 'pattern' cannot be enforced: the pattern has",
        ),
        (
            {"patternProperties": {r"\bx": True}},
            "#: the schema keyword 'patternProperties' cannot be enforced",
        ),
        (
            {"items": {"type": "string", "format": "regex"}},
            "#/items: the format 'regex' cannot be enforced",
        ),
        (
            {"type": "string", "format": "date", "pattern": "^9"},
            "#: the schema keywords 'pattern' and 'format'",
        ),
        ({"type": "string", "format": "uri", "maxLength": 2083}, "#: bounds of length"),
        (
            {"type": "string", "pattern": "^(ab)+$", "maxLength": 9},
            "'minLength' and 'maxLength' cannot be enforced beside the pattern",
        ),
        ({"type": "string", "pattern": "^abc$", "maxLength": 2}, "no text of the pattern"),
        ({"type": "string", "pattern": "^(a{1,99}){1,99}$"}, "can be read in too many ways"),
        ({"type": "number", "multipleOf": 0.01}, "'multipleOf' must be an integer"),
        ({"type": "integer", "multipleOf": 1000}, "'multipleOf' cannot be enforced above 100"),
        (
            {"items": {"type": "integer", "minimum": 5, "maximum": 4}},
            "#/items: no number fits 'minimum'",
        ),
        ({"prefixItems": [True], "items": False, "minItems": 2}, "#: no value fits"),
        ({"prefixItems": [True, False], "minItems": 2}, "#: no value fits"),
        ({"properties": {"a": True}, "minProperties": 2}, "#: no object fits"),
        (
            {"propertyNames": {"anyOf": [{"type": "string"}]}},
            "a choice in the schema keyword 'propertyNames'",
        ),
        ({"enum": ["\ud83d"]}, "half of a character"),
        ({"properties": {"a" * 5000: {}}, "additionalProperties": True}, "#: a name or a value"),
        ({"enum": ["a" * n for n in range(1500)]}, "#: a name or a value is too long"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_path_and_keyword(schema: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)):
        schema_text(schema)


def test_a_format_is_written_once_for_the_whole_schema() -> None:
    one = {"type": "object", "properties": {"a": {"type": "string", "format": "email"}}}
    many = {
        "type": "object",
        "properties": {k: {"type": "string", "format": "email"} for k in "abcdef"},
    }

    assert len(schema_text(many)) < len(schema_text(one)) + 1500


def test_equal_bounds_are_written_once_for_the_whole_schema() -> None:
    one = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5000}}}
    many = {
        "type": "object",
        "properties": {k: {"type": "string", "maxLength": 5000} for k in "abcdef"},
    }

    assert len(schema_text(many)) < len(schema_text(one)) + 1500


def test_deep_schemas_are_no_recursion_here() -> None:
    schema: Any = {"type": "null"}
    for _ in range(250):
        schema = {"type": "array", "items": schema}

    assert json.loads("[" * 250 + "]" * 250) is not None
    assert takes(compiled(schema_text(schema)), "[" * 250 + "]" * 250)
