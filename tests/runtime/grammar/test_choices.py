"""What stands beside a choice is refused, but for a type that the chosen have anyway."""

import re
from typing import Any

import pytest

from runtime.errors import GrammarError
from runtime.grammar.choices import check_choice, shares_no_value

DEFS: dict[str, Any] = {
    "$defs": {
        "word": {"type": "string"},
        "name": {"$ref": "#/$defs/word"},
        "any": {},
        "list": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]},
    }
}


@pytest.mark.parametrize(
    "rules",
    [
        {"type": "string", "$ref": "#/$defs/name"},
        {"type": "number", "anyOf": [{"type": "integer"}, {"enum": [1.5]}, {"minimum": 3}]},
        {"type": ["null", "string"], "oneOf": [{"const": None}, {"$ref": "#/$defs/word"}, {}]},
        {"type": "object", "allOf": [{"properties": {}}]},
        {"type": "null", "$ref": "#/$defs/list"},
        {"anyOf": [{"type": "null"}], "title": "a"},
        {"type": "string", "enum": [3]},
    ],
)
def test_a_type_that_the_chosen_have_may_stand_beside_them(rules: dict[str, Any]) -> None:
    check_choice(rules, {**DEFS, **rules})


@pytest.mark.parametrize(
    ("rules", "beside"),
    [
        ({"type": "string", "anyOf": [{}, {"type": "null"}]}, "type"),
        ({"type": "integer", "anyOf": [{"type": "number"}]}, "type"),
        ({"type": "string", "anyOf": [{"anyOf": [{}]}]}, "type"),
        ({"type": "string", "anyOf": [True]}, "type"),
        ({"type": "string", "$ref": "#/$defs/any"}, "type"),
        ({"type": "string", "$ref": "#/$defs/none"}, "type"),
        ({"type": "string", "allOf": [{"enum": ["a", 3]}]}, "type"),
        ({"enum": ["a"], "anyOf": [{"type": "null"}]}, "enum"),
        ({"unevaluatedProperties": False, "anyOf": [{"type": "object"}]}, "unevaluatedProperties"),
        ({"const": "a", "$ref": "#/$defs/name"}, "const"),
        ({"allOf": [{"type": "null"}], "$ref": "#/$defs/name"}, "allOf"),
    ],
)
def test_other_keywords_beside_a_choice_are_refused(rules: dict[str, Any], beside: str) -> None:
    reason = re.escape(f"the schema keyword {beside!r} cannot be enforced beside")
    with pytest.raises(GrammarError, match=reason):
        check_choice(rules, {**DEFS, **rules})


def kind(value: object, **more: Any) -> dict[str, Any]:
    """Return an object that says what it is."""
    properties = {"kind": {"const": value}, **more}
    return {"type": "object", "properties": properties, "required": ["kind"]}


KINDS = {"$defs": {"a": kind("a"), "b": kind("b"), "ab": kind("a"), "c": {"$ref": "#/$defs/b"}}}


@pytest.mark.parametrize(
    "parts",
    [
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/c"}, {"type": "null"}],
        [kind("a", n={}), kind("b", n={}), kind(1), kind(True)],
        [{"type": "integer"}, {"type": ["string", "null"]}],
        [{"enum": ["a", "b"]}, {"const": "c"}],
        [{"const": 2.5}, {"type": "integer"}, {"enum": ["a", None]}, {"type": "boolean"}],
    ],
)
def test_one_of_schemas_that_share_no_value_is_known(parts: list[Any]) -> None:
    rules: dict[str, Any] = {"oneOf": parts}

    assert shares_no_value(rules, {**KINDS, **rules})


@pytest.mark.parametrize(
    "parts",
    [
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/ab"}],
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/none"}],
        [{"type": "integer"}, {"type": "number"}],
        [{"enum": ["a", "b"]}, {"enum": ["b"]}],
        [{"const": 2.0}, {"type": "integer"}],
        [{"const": 2.5}, {"type": "number"}],
        [kind("a"), {**kind("b"), "required": []}],
        [kind("a"), {"properties": {"kind": {"const": "b"}}, "required": ["kind"]}],
        [True, {"type": "null"}],
    ],
)
def test_one_of_schemas_that_may_share_a_value_is_known(parts: list[Any]) -> None:
    rules: dict[str, Any] = {"oneOf": parts}

    assert not shares_no_value(rules, {**KINDS, **rules})
