"""What a schema says of keys reaches the compiler in the form that it holds outputs to."""

import re
from typing import Any

import pytest

from runtime.errors import GrammarError
from runtime.grammar.keys import prepare_keys

NUMBER = {"type": "number"}


@pytest.mark.parametrize(
    ("rules", "properties"),
    [
        ({"required": ["a"]}, {"a": True}),
        ({"required": ["a", "b"], "properties": {"a": NUMBER}}, {"a": NUMBER, "b": True}),
        ({"required": ["b"], "additionalProperties": NUMBER}, {"b": NUMBER}),
        ({"required": ["b"], "unevaluatedProperties": NUMBER}, {"b": NUMBER}),
        ({"required": ["a"], "properties": {"a": NUMBER}}, {"a": NUMBER}),
    ],
)
def test_required_keys_are_properties(rules: dict[str, Any], properties: dict[str, Any]) -> None:
    prepare_keys(rules)

    assert rules["properties"] == properties


def test_where_only_names_were_required_other_keys_stay_allowed() -> None:
    rules: dict[str, Any] = {"type": "object", "required": ["a"]}

    prepare_keys(rules)

    assert rules["additionalProperties"] is True


def test_names_are_strings() -> None:
    for names in ({}, {"type": ["string", "null"]}, {"enum": ["a", 3]}, {"$ref": "#/$defs/a"}):
        rules: dict[str, Any] = {"propertyNames": dict(names)}

        prepare_keys(rules)

        assert rules["propertyNames"]["type"] == "string"


@pytest.mark.parametrize(
    "rules", [{"propertyNames": True}, {"propertyNames": {}, "additionalProperties": False}]
)
def test_names_that_exclude_none_are_not_said(rules: dict[str, Any]) -> None:
    prepare_keys(rules)

    assert "propertyNames" not in rules


@pytest.mark.parametrize(
    "rules",
    [
        {"properties": {"b": NUMBER}, "patternProperties": {"^a": {"type": "string"}}},
        {"properties": {"ab": NUMBER}, "patternProperties": {"^a": NUMBER}},
        {"properties": {"ab": NUMBER}, "patternProperties": {"^a": {}}},
        {"patternProperties": {"^a": NUMBER}, "additionalProperties": False},
        {"patternProperties": {"^a": True}, "additionalProperties": True},
        {"patternProperties": {"^a": NUMBER, "b$": NUMBER}},
        {"patternProperties": {"^a": {}, "b$": True}},
        {"patternProperties": {"^x-a": NUMBER, "^x-b+": {}, "^y.*": {"type": "string"}}},
        {"additionalProperties": NUMBER, "minProperties": 1},
        {
            "required": ["a"],
            "properties": {"a": {}},
            "additionalProperties": {},
            "minProperties": 2,
        },
        {"properties": {"a": {}, "b": {}}, "minProperties": 2},
        {"required": "a"},
        {"required": ["a"], "type": "string"},
        {"required": ["a"], "enum": [{"a": 1}]},
    ],
)
def test_what_is_no_contradiction_is_left_as_it_is(rules: dict[str, Any]) -> None:
    before = dict(rules)

    prepare_keys(rules)

    assert rules == before


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"required": ["a"], "additionalProperties": False}, "'a' is not allowed"),
        ({"required": ["a"], "patternProperties": {"^a": {}}}, "'a' must be among 'properties'"),
        ({"required": ["a"], "propertyNames": {"pattern": "a"}}, "'a' must be among 'properties'"),
        ({"propertyNames": {}, "properties": {"a": {}}}, "'propertyNames' and 'properties'"),
        ({"propertyNames": {}, "patternProperties": {"a": {}}}, "and 'patternProperties'"),
        ({"properties": {"ab": {}}, "patternProperties": {"b": NUMBER}}, "'ab' matches"),
        ({"properties": {"ab": {}}, "patternProperties": {r"\p{L}": NUMBER}}, "'ab' matches"),
        ({"properties": {"ab": NUMBER}, "patternProperties": {"^a.*": {}}}, "'ab' matches"),
        ({"patternProperties": {"^a.*": NUMBER, ".*z$": {"type": "string"}}}, "'.*z$'"),
        ({"patternProperties": {"^a": NUMBER, "z$": {}}}, "may match the patterns"),
        ({"patternProperties": {"^ab?": NUMBER, "^a": {}}}, "may match the patterns"),
        ({"patternProperties": {"^b|c": NUMBER, "^c": {}}}, "may match the patterns"),
        ({"patternProperties": {"^b*c": NUMBER, "^c": {}}}, "may match the patterns"),
        ({"additionalProperties": NUMBER, "minProperties": 2}, "'minProperties'"),
        ({"propertyNames": {"maxLength": 3}, "minProperties": 2}, "'minProperties'"),
        ({"patternProperties": {"^a": {}}, "minProperties": 2}, "'minProperties'"),
        (
            {"properties": {"a": {}}, "additionalProperties": True, "minProperties": 2},
            "'minProperties'",
        ),
        (
            {"patternProperties": {"b": NUMBER}, "additionalProperties": True},
            "'patternProperties' cannot be enforced beside other properties",
        ),
    ],
)
def test_keys_that_follow_two_schemas_are_refused(rules: dict[str, Any], reason: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)):
        prepare_keys(rules)
