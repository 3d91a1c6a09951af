"""Schemas whose keywords would be dropped in silence are refused, wherever the keyword stands."""

from typing import Any

import pytest

from runtime.errors import GrammarError
from runtime.grammar.schema import check_schema

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
        check_schema(HIDDEN[place])


@pytest.mark.parametrize(
    "name", ["contains", "dependentRequired", "if", "unevaluatedItems", "uniqueItems"]
)
def test_each_such_keyword_counts(name: str) -> None:
    with pytest.raises(GrammarError, match=name):
        check_schema({"type": "array", name: True})


def test_names_of_properties_and_values_are_no_keywords() -> None:
    check_schema(
        {
            "type": "object",
            "properties": {"not": {"type": "string"}, "if": {"const": {"contains": 1}}},
            "uniqueItems": False,
        }
    )


@pytest.mark.parametrize("schema", [True, False, [], "x", None, 3])
def test_what_is_no_object_is_left_to_the_compiler(schema: object) -> None:
    check_schema(schema)
