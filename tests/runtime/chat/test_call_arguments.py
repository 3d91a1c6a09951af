"""Arguments of a forced call: found where they are described, refused where no block holds them."""

from typing import Any

import pytest

from runtime.chat.call_arguments import arguments
from runtime.errors import GrammarError

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {}}, "required": ["city"]}


@pytest.mark.parametrize(
    "schema",
    [
        CITY,
        {"$ref": "#/$defs/a", "$defs": {"a": CITY}},
        {"$ref": "#/definitions/b", "definitions": {"a": CITY, "b": {"$ref": "#/definitions/a"}}},
        {"allOf": [{"$ref": "#/$defs/a"}], "type": "object", "$defs": {"a": CITY}},
        {**CITY, "type": ["object", "null"], "minProperties": 1, "maxProperties": 1},
    ],
)
def test_they_are_found_where_they_are_described(schema: dict[str, Any]) -> None:
    found = arguments(schema)

    assert found.properties == {"city": {}}
    assert found.required == {"city"}
    assert found.shared == {k: v for k, v in schema.items() if k in ("$defs", "definitions")}


def test_what_is_required_is_an_argument() -> None:
    rules = {"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "null"}}}

    assert arguments(rules).properties == {"a": {"type": "null"}, "b": True}
    typed = arguments({**rules, "additionalProperties": {"type": "string"}})
    assert typed.properties["b"] == {"type": "string"}


def test_nothing_said_is_no_argument() -> None:
    assert arguments({}) == ({}, frozenset(), {})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (True, "must be an object"),
        ({"type": "array"}, "are an object"),
        ({"properties": []}, "properties"),
        ({"anyOf": [CITY]}, "'anyOf' of all arguments"),
        ({"allOf": [CITY, CITY]}, "'allOf' of all arguments"),
        ({**CITY, "dependentRequired": {}}, "'dependentRequired' of all arguments"),
        ({**CITY, "patternProperties": {"^c": {}}}, "'patternProperties' of all arguments"),
        ({**CITY, "not": {}}, "'not' of all arguments"),
        ({**CITY, "minProperties": 2}, "'minProperties' of all arguments"),
        ({**CITY, "maxProperties": 0}, "'maxProperties' of all arguments"),
        ({**CITY, "$ref": "#/$defs/a"}, "'$ref' of all arguments"),
        ({"$ref": "#/$defs/a"}, "leads to no schema"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "leads to no schema"),
    ],
)
def test_what_no_block_of_calls_holds_is_refused(schema: object, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason.replace("$", "\\$")):
        arguments(schema)
