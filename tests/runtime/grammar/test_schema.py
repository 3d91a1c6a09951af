"""Schemas whose keywords would be dropped in silence are refused, wherever the keyword stands."""

import re
from typing import Any

import pytest

from runtime.errors import GrammarError
from runtime.grammar.schema import PreparedSchema

BAD: dict[str, Any] = {"not": {"type": "null"}}
HIDDEN: dict[str, Any] = {
    "#": BAD,
    "#/properties/a~1b": {"type": "object", "properties": {"a/b": BAD}},
    "#/$defs/a": {"$defs": {"a": BAD}, "$ref": "#/$defs/a"},
    "#/of/my/a/items": {"$ref": "#/of/my/a", "of": {"my": {"a": {"items": BAD}}}},
    "#/b": {"$ref": "#/a", "a": {"items": {"$ref": "#/b"}}, "b": BAD},
    "#/items": {"type": "array", "items": BAD},
    "#/prefixItems/1": {"prefixItems": [{}, BAD]},
    "#/anyOf/1": {"anyOf": [True, BAD]},
    "#/additionalProperties": {"additionalProperties": BAD},
    "#/items/anyOf/0/properties/b/allOf/0": {
        "items": {"anyOf": [{"properties": {"b": {"allOf": [BAD]}}}]}
    },
}


@pytest.mark.parametrize("path", HIDDEN)
def test_a_keyword_is_refused_with_its_path(path: str) -> None:
    reason = re.escape(f"{path}: the schema keyword 'not' cannot be enforced")
    with pytest.raises(GrammarError, match=f"^{reason}$"):
        PreparedSchema(HIDDEN[path])


@pytest.mark.parametrize(
    "name", ["contains", "dependentRequired", "if", "unevaluatedItems", "uniqueItems"]
)
def test_each_such_keyword_counts(name: str) -> None:
    with pytest.raises(GrammarError, match=name):
        PreparedSchema({"type": "array", name: True})


@pytest.mark.parametrize("count", [2047, 2048])
def test_the_objects_of_a_schema_have_so_many_properties(count: int) -> None:
    inner = {"properties": {f"f{k}": {"type": "string"} for k in range(count)}}
    schema = {"properties": {"a": inner, "b": inner | {"minProperties": 1}}}

    if count == 2047:
        PreparedSchema(schema)
        return
    with pytest.raises(GrammarError, match="at most 4096 properties in all"):
        PreparedSchema(schema)


def test_a_reference_that_leads_to_itself_alone_is_refused() -> None:
    with pytest.raises(GrammarError, match=r"#/\$defs/a: .* leads back to itself alone"):
        PreparedSchema(
            {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
        )


def test_names_of_properties_and_values_are_no_keywords() -> None:
    PreparedSchema(
        {
            "type": "object",
            "properties": {"not": {"type": "string"}, "if": {"const": {"contains": 1}}},
            "uniqueItems": False,
        }
    )


def test_an_address_is_no_matter_where_no_reference_is_inside() -> None:
    PreparedSchema({"$id": "urn:a", "items": {"$ref": "#/$defs/b"}, "$defs": {"b": {"$id": "b"}}})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ([], "an object or a boolean"),
        (False, "#: the schema false cannot accept any value"),
        ({"$ref": "#/$defs/x"}, "#: Cannot find"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "urn:a", "items": {"$ref": "#"}}}},
            "#/$defs/a: the schema keyword '$id'",
        ),
        ({"allOf": [{}, {}]}, "#: the schema keyword 'allOf' with several schemas"),
        ({"items": {"oneOf": [{}, {}]}}, "#/items: the schema keyword 'oneOf'"),
        ({"items": {"type": "float"}}, "#/items: Unsupported type 'float'"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "#: the schema keyword 'anyOf' leads back"),
        (
            {"properties": {"a": {"minLength": 3, "anyOf": [{}]}}},
            "#/properties/a: the schema keyword",
        ),
        ({"enum": ["a"], "type": "null"}, "#: no value of the schema keyword 'enum' fits"),
        (
            {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "minItems": 1}}, "$ref": "#/$defs/a"},
            "#/$defs/a: no value fits",
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_path(schema: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=f"^{re.escape(reason)}" if "#" in reason else reason):
        PreparedSchema(schema)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(400):
        schema = {"items": schema}

    with pytest.raises(GrammarError, match=r"^#/items/items/.*nested more than 300 deep"):
        PreparedSchema(schema)


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
    PreparedSchema(rules)

    assert rules["type"] == types


@pytest.mark.parametrize("rules", [{}, {"enum": [1], "minimum": 0}, {"const": "a", "pattern": "a"}])
def test_what_names_its_values_or_nothing_gets_no_type(rules: dict[str, Any]) -> None:
    PreparedSchema(rules)

    assert "type" not in rules


@pytest.mark.parametrize("choice", ["$ref", "anyOf", "oneOf", "allOf"])
def test_keywords_beside_a_choice_are_refused(choice: str) -> None:
    inner: Any = "#/$defs/a" if choice == "$ref" else [True]
    reason = re.escape(f"'minLength' cannot be enforced beside '{choice}'")
    with pytest.raises(GrammarError, match=reason):
        PreparedSchema({choice: inner, "minLength": 3, "$defs": {"a": True}})


def test_a_type_beside_a_choice_is_that_of_its_parts() -> None:
    schema: dict[str, Any] = {"type": "string", "anyOf": [{}, {"pattern": "a"}, {"enum": ["b"]}]}

    PreparedSchema(schema)

    assert [part.get("type") for part in schema["anyOf"]] == ["string", "string", None]


def test_each_part_of_a_schema_has_its_path() -> None:
    schema: dict[str, Any] = {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}, "b": {"not": 1}}}
    del schema["$defs"]["b"]

    prepared = PreparedSchema(schema)

    assert {path for _, path in prepared.parts()} == {"#", "#/items", "#/$defs/a"}
    assert prepared.path(schema["$defs"]["a"]) == "#/$defs/a"
