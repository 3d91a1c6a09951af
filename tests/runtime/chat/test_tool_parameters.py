"""Tests of runtime.chat.tool_parameters: what a tool's schema says of each argument."""

from typing import Any

import pytest

from runtime.chat.tool_parameters import ToolParameters

A, B = {"type": "integer"}, {"type": "string"}


@pytest.mark.parametrize(
    ("root", "a", "b"),
    [
        (None, True, True),
        ({}, True, True),
        ({"properties": {"a": A}}, A, True),
        ({"properties": {"a": A}, "additionalProperties": False}, A, True),
        ({"properties": {"a": A}, "additionalProperties": B}, A, B),
        ({"properties": {"a": A}, "additionalProperties": B, "patternProperties": {}}, A, True),
        ({"properties": {"": A}}, True, True),
        ({"required": ["b"], "additionalProperties": B}, B, B),
        ({"$ref": "#/$defs/r", "$defs": {"r": {"properties": {"a": A}}}}, A, True),
        ({"allOf": [{"properties": {"a": A}}, {"properties": {"b": B}}]}, A, B),
        ({"properties": {"a": A}, "oneOf": [{"properties": {"b": B}}, {"properties": {}}]}, A, B),
        ({"anyOf": [{"properties": {"a": A}}, {"properties": {"a": B}}]}, {"anyOf": [B, A]}, True),
        ({"if": {}, "then": {"properties": {"a": A}}, "else": {"properties": {"b": B}}}, A, B),
        ({"anyOf": [{"$ref": "#"}], "properties": {"a": A}}, A, True),
        ({"properties": 7}, True, True),
    ],
    ids=str,
)
def test_each_argument_has_the_schema_that_is_said_anywhere(root: Any, a: Any, b: Any) -> None:
    parameters = ToolParameters(root)

    assert (parameters.schema("a"), parameters.schema("b")) == (a, b)


@pytest.mark.parametrize(
    ("root", "only"),
    [
        ({"properties": {"a": A}}, "a"),
        ({"properties": {"a": A, "b": B}, "required": ["b"]}, "b"),
        ({"properties": {"a": A, "b": B}}, None),
        ({"properties": {"a": A, "b": B}, "required": ["a", "b"]}, None),
        ({}, None),
        (None, None),
    ],
    ids=str,
)
def test_a_value_without_a_name_is_meant_for_one_argument_alone(
    root: Any, only: str | None
) -> None:
    assert ToolParameters(root).only == only
