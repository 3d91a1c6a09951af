"""A keyword whose value has a wrong form is refused by its name."""

import re
from typing import Any

import pytest

from runtime.errors import GrammarError
from runtime.grammar.keyword_forms import check_forms


@pytest.mark.parametrize("name", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
@pytest.mark.parametrize(
    ("kind", "value", "most"),
    [("integer", 10**400, "2^63"), ("integer", 1 << 63, "2^63"), ("number", -(10**400), "10^308")],
)
def test_bounds_too_large_are_named(name: str, kind: str, value: int, most: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(f"'{name}' must be below {most}")):
        check_forms({"type": kind, name: value})


@pytest.mark.parametrize("value", [-1, 1 << 31, 10**400, 2.5, True, "3", None])
@pytest.mark.parametrize("name", ["minLength", "maxLength", "minItems", "maxProperties"])
def test_counts_that_are_none_are_named(name: str, value: Any) -> None:
    with pytest.raises(GrammarError, match=f"'{name}' must be an integer from 0"):
        check_forms({name: value})


def test_whole_floats_are_counts() -> None:
    schema: dict[str, Any] = {"type": "array", "minItems": 2.0}

    check_forms(schema)

    assert schema["minItems"] == 2
    assert isinstance(schema["minItems"], int)


@pytest.mark.parametrize("what", ["Length", "Items", "Properties"])
def test_counts_that_exclude_each_other_are_named(what: str) -> None:
    with pytest.raises(GrammarError, match=f"'min{what}' is above 'max{what}'"):
        check_forms({f"min{what}": 5, f"max{what}": 2})


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"type": "text"}, "Unsupported type 'text'"),
        ({"type": ["string", 3]}, "Unsupported type 3"),
        ({"type": []}, "'type'"),
        ({"properties": []}, "'properties' must be an object of schemas"),
        ({"properties": {"a": 1}}, "'properties' must be an object of schemas"),
        ({"$defs": {"a": []}}, "'$defs'"),
        ({"items": 3}, "'items' must be a schema"),
        ({"items": [3]}, "'items' must be a list of schemas"),
        ({"anyOf": {}}, "'anyOf' must be a list of schemas"),
        ({"oneOf": []}, "'oneOf' must be a list of schemas, one at least"),
        ({"additionalProperties": "no"}, "'additionalProperties' must be a schema"),
        ({"pattern": 3}, "'pattern' must be a string"),
        ({"$ref": None}, "'$ref' must be a string"),
        ({"required": True}, "'required' must be a list of strings"),
        ({"required": [1]}, "'required' must be a list of strings"),
        ({"enum": []}, "'enum' must be a list of values"),
        ({"enum": "ab"}, "'enum' must be a list of values"),
        ({"exclusiveMinimum": True}, "'exclusiveMinimum' must be a number"),
        ({"multipleOf": 0}, "'multipleOf' must be a number above 0"),
    ],
)
def test_a_value_of_another_form_is_named(rules: dict[str, Any], reason: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)):
        check_forms(rules)


@pytest.mark.parametrize(
    "rules",
    [
        {"type": ["string", "null"], "items": [True, {}], "prefixItems": [], "required": []},
        {"properties": {"a": True}, "additionalProperties": False, "minimum": 0.5, "maxLength": 0},
        {"type": "number", "maximum": 1 << 80},
    ],
)
def test_right_forms_are_left_as_they_are(rules: dict[str, Any]) -> None:
    before = dict(rules)

    check_forms(rules)

    assert rules == before
