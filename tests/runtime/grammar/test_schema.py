"""Schemas whose keywords would be dropped in silence are refused, wherever the keyword stands."""

from typing import Any

import pytest

from runtime.errors import GrammarError
from runtime.grammar.schema import prepare_schema, prepare_tag

BAD: dict[str, Any] = {"not": {"type": "null"}}
HIDDEN: dict[str, Any] = {
    "at the root": BAD,
    "in a property": {"type": "object", "properties": {"a": BAD}},
    "in a definition": {"$defs": {"a": BAD}, "$ref": "#/$defs/a"},
    "in items": {"type": "array", "items": BAD},
    "in a tuple": {"prefixItems": [{}, BAD]},
    "in a choice": {"anyOf": [True, BAD]},
    "in other properties": {"additionalProperties": BAD},
    "deep down": {"items": {"anyOf": [{"properties": {"b": {"allOf": [BAD]}}}]}},
}


@pytest.mark.parametrize("place", HIDDEN)
def test_a_keyword_is_found(place: str) -> None:
    with pytest.raises(GrammarError, match="'not' cannot be enforced"):
        prepare_schema(HIDDEN[place])


@pytest.mark.parametrize(
    "name", ["contains", "dependentRequired", "if", "unevaluatedItems", "uniqueItems"]
)
def test_each_such_keyword_counts(name: str) -> None:
    with pytest.raises(GrammarError, match=name):
        prepare_schema({"type": "array", name: True})


def test_names_of_properties_and_values_are_no_keywords() -> None:
    prepare_schema(
        {
            "type": "object",
            "properties": {"not": {"type": "string"}, "if": {"const": {"contains": 1}}},
            "uniqueItems": False,
        }
    )


@pytest.mark.parametrize("schema", [True, False, [], "x", None, 3])
def test_what_is_no_object_is_left_to_the_compiler(schema: object) -> None:
    prepare_schema(schema)


def test_bounds_of_a_length_become_a_pattern() -> None:
    schema: dict[str, Any] = {
        "properties": {
            "a": {"type": "string", "minLength": 2, "maxLength": 5},
            "b": {"type": ["string", "null"], "minLength": 1},
            "c": {"type": "string", "enum": ["x"], "maxLength": 3},
            "d": {"type": "string", "minLength": 5, "maxLength": 2},
        },
        "propertyNames": {"maxLength": 7},
    }

    prepare_schema(schema)

    assert schema["properties"] == {
        "a": {"type": "string", "pattern": r"^[\s\S]{2,5}$"},
        "b": {"type": ["string", "null"], "pattern": r"^[\s\S]{1,}$"},
        "c": {"type": "string", "enum": ["x"], "maxLength": 3},
        "d": {"type": "string", "minLength": 5, "maxLength": 2},
    }
    assert schema["propertyNames"] == {"pattern": r"^[\s\S]{0,7}$"}


def test_the_schemas_inside_a_structural_tag_are_prepared() -> None:
    inner: dict[str, Any] = {"type": "string", "maxLength": 3}
    tag = {"format": {"elements": [{"content": {"type": "json_schema", "json_schema": inner}}]}}

    prepare_tag(tag)
    assert inner == {"type": "string", "pattern": r"^[\s\S]{0,3}$"}

    inner["not"] = {}
    with pytest.raises(GrammarError, match="'not'"):
        prepare_tag(tag)
