"""Schemas whose keywords would be dropped in silence are refused, wherever the keyword stands."""

import re
from typing import Any

import pytest

from runtime.errors import GrammarError
from runtime.grammar.patterns import json_pattern
from runtime.grammar.schema import prepare_schema, prepare_tag

BAD: dict[str, Any] = {"not": {"type": "null"}}
HIDDEN: dict[str, Any] = {
    "at the root": BAD,
    "in a property": {"type": "object", "properties": {"a": BAD}},
    "in a definition": {"$defs": {"a": BAD}, "$ref": "#/$defs/a"},
    "behind a reference": {"$ref": "#/of/my/a", "of": {"my": {"a": {"items": BAD}}}},
    "behind two": {"$ref": "#/a", "a": {"items": {"$ref": "#/b"}}, "b": BAD},
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


def test_a_reference_that_leads_to_itself_alone_is_refused() -> None:
    with pytest.raises(GrammarError, match="'#/\\$defs/a' leads to itself alone"):
        prepare_schema(
            {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
        )


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
            "e": {"propertyNames": {"maxLength": 7}},
        },
    }

    prepare_schema(schema)

    assert schema["properties"] == {
        "a": {"type": "string", "pattern": r"^[\s\S]{2,5}$"},
        "b": {"type": ["string", "null"], "pattern": r"^[\s\S]{1,}$"},
        "c": {"type": "string", "enum": ["x"], "maxLength": 3},
        "d": {"type": "string", "minLength": 5, "maxLength": 2},
        "e": {
            "type": "object",
            "propertyNames": {"type": "string", "pattern": r"^[\s\S]{0,7}$"},
        },
    }


def test_a_schema_is_prepared_once_however_often_it_is_referred_to() -> None:
    name: dict[str, Any] = {"type": "string", "pattern": '"'}
    reference = {"$ref": "#/of/name"}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": reference, "b": dict(reference), "c": {"$ref": "#"}},
        "of": {"name": name},
    }

    prepare_schema(schema)

    assert name["pattern"] == json_pattern('"')


@pytest.mark.parametrize("kind", ["json_schema", "qwen_xml_parameter"])
def test_the_schemas_inside_a_structural_tag_are_prepared(kind: str) -> None:
    inner: dict[str, Any] = {"type": "string", "maxLength": 3}
    tag = {"format": {"elements": [{"content": {"type": kind, "json_schema": inner}}]}}

    prepare_tag(tag)
    assert inner == {"type": "string", "pattern": r"^[\s\S]{0,3}$"}

    inner["not"] = {}
    with pytest.raises(GrammarError, match="'not'"):
        prepare_tag(tag)


@pytest.mark.parametrize(
    ("rules", "types"),
    [
        ({"pattern": "a"}, "string"),
        ({"format": "unknown"}, "string"),
        ({"minimum": 3}, "number"),
        ({"required": ["a"]}, "object"),
        ({"minItems": 2}, "array"),
        ({"minimum": 3, "maxItems": 2}, ["number", "array"]),
    ],
)
def test_keywords_without_a_type_say_their_type(rules: dict[str, Any], types: object) -> None:
    prepare_schema(rules)

    assert rules["type"] == types


@pytest.mark.parametrize("rules", [{}, {"enum": [1], "minimum": 0}, {"const": "a", "pattern": "a"}])
def test_what_names_its_values_or_nothing_gets_no_type(rules: dict[str, Any]) -> None:
    prepare_schema(rules)

    assert "type" not in rules


@pytest.mark.parametrize("choice", ["$ref", "anyOf", "oneOf", "allOf"])
def test_keywords_beside_a_choice_are_refused(choice: str) -> None:
    reason = re.escape(f"'minLength' cannot be enforced beside '{choice}'")
    with pytest.raises(GrammarError, match=reason):
        prepare_schema({choice: [], "minLength": 3})


def test_a_type_beside_a_choice_is_that_of_its_parts() -> None:
    schema: dict[str, Any] = {"type": "string", "anyOf": [{}, {"pattern": "a"}, {"enum": ["b"]}]}

    prepare_schema(schema)

    assert [part.get("type") for part in schema["anyOf"]] == ["string", "string", None]


@pytest.mark.parametrize("name", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
@pytest.mark.parametrize(
    ("kind", "value", "most"),
    [("integer", 10**400, "2^63"), ("integer", 1 << 63, "2^63"), ("number", -(10**400), "10^308")],
)
def test_bounds_too_large_are_named(name: str, kind: str, value: int, most: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(f"'{name}' must be below {most}")):
        prepare_schema({"properties": {"a": {"type": kind, name: value}}})


@pytest.mark.parametrize("value", [-1, 1 << 31, 10**400, 2.5])
@pytest.mark.parametrize("name", ["minLength", "maxLength", "minItems", "maxProperties"])
def test_counts_that_are_none_are_named(name: str, value: float) -> None:
    with pytest.raises(GrammarError, match=f"'{name}' must be an integer from 0"):
        prepare_schema({name: value})


def test_whole_floats_are_counts() -> None:
    schema: dict[str, Any] = {"type": "array", "minItems": 2.0}

    prepare_schema(schema)

    assert schema["minItems"] == 2
    assert isinstance(schema["minItems"], int)


def test_a_format_is_said_once_for_the_whole_schema() -> None:
    schema: dict[str, Any] = {
        "properties": {
            "a": {"type": "string", "format": "date", "title": "A"},
            "b": {"format": "date", "maxLength": 10},
            "c": {"type": ["string", "null"], "format": "date"},
            "d": {"type": "string", "format": "date", "enum": ["2000-01-01"]},
            "e": {"type": "integer", "format": "int32"},
        },
        "$defs": {"mine": {"type": "null"}},
    }

    prepare_schema(schema)

    properties = schema["properties"]
    assert properties["a"] == properties["b"] == {"$ref": "#/$defs/format date"}
    assert schema["$defs"]["mine"] == {"type": "null"}
    assert properties["c"] == {**schema["$defs"]["format date"], "type": ["string", "null"]}
    assert properties["d"]["format"] == "date"
    assert properties["e"] == {"type": "integer", "format": "int32"}


def test_a_schema_that_is_a_format_refers_to_its_own_definition() -> None:
    schema: dict[str, Any] = {"type": "string", "format": "uuid", "$defs": {"x": True}}

    prepare_schema(schema)

    assert schema["$ref"] == "#/$defs/format uuid"
    assert schema["$defs"].keys() == {"x", "format uuid"}


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"format": "date", "pattern": "^9"}, "'pattern' and 'format'"),
        ({"format": "date", "minLength": 11}, "bounds of length"),
        ({"format": "uri", "maxLength": 2083}, "bounds of length"),
        ({"format": "regex"}, "the format 'regex'"),
        ({"pattern": "[[:alpha:]]"}, "POSIX"),
        ({"patternProperties": {"[[:alpha:]]": {}}}, "POSIX"),
    ],
)
def test_what_no_pattern_says_is_refused(rules: dict[str, Any], reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        prepare_schema({"type": "string", **rules})


def test_a_posix_class_in_a_tags_pattern_is_refused() -> None:
    with pytest.raises(GrammarError, match="POSIX"):
        prepare_tag({"format": {"type": "regex", "pattern": "[[:alpha:]]"}})
