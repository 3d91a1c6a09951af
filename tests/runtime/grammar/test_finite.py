"""Schemas that no finite value fits are found."""

from typing import Any

import pytest

from runtime.grammar.finite import without_end

SELF = {"$ref": "#"}


def parts(schema: Any) -> list[dict[str, Any]]:
    """Return all schemas inside, and what only looks like one."""
    found, waiting = list[dict[str, Any]](), [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if part.keys() & {"type", "$ref", "anyOf", "allOf", "enum"}:
                found.append(part)
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return found


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": SELF},
        {"type": "object", "properties": {"a": SELF}, "required": []},
        {
            "type": "object",
            "properties": {"a": {"anyOf": [SELF, {"type": "null"}]}},
            "required": ["a"],
        },
        {"type": ["null", "object"], "properties": {"a": SELF}, "required": ["a"]},
        {"anyOf": [False, {"type": "null"}]},
        {"enum": [1]},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": SELF, "minItems": 1},
        {"type": "object", "properties": {"a": False}, "required": []},
    ],
)
def test_what_may_end_is_none_of_them(schema: dict[str, Any]) -> None:
    assert without_end(parts(schema), schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": SELF, "minItems": 1},
        {"type": "array", "prefixItems": [True, SELF], "minItems": 2},
        {"type": "array", "items": [True, SELF], "minItems": 2},
        {"type": "object", "properties": {"a": SELF}, "required": ["a"]},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "array", "minItems": 1, "items": {"allOf": [SELF]}},
        {"anyOf": [False]},
    ],
)
def test_what_never_ends_is_found(schema: dict[str, Any]) -> None:
    assert without_end(parts(schema), schema) is schema


def test_what_is_to_blame_is_no_reference() -> None:
    endless = {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}
    schema = {"$ref": "#/$defs/a", "$defs": {"a": endless}}

    assert without_end(parts(schema), schema) is endless
