"""Tests of runtime.schema_reference: where references inside a schema lead."""

from typing import Any

import pytest

from runtime.schema_reference import is_circle, is_missing, referred

WHOLE: dict[str, Any] = {
    "$defs": {"a": {"type": "null"}, "b": {"$defs": {"c": False}}},
    "list": [True, {"type": "string"}],
    "a/b~c d": {"type": "object"},
}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", WHOLE),
        ("#/$defs/a", {"type": "null"}),
        ("#/$defs/b/$defs/c", False),
        ("#/$defs/missing", True),
        ("#/$defs/a/type/deeper", True),
        ("#/list/1", {"type": "string"}),
        ("#/list/2", True),
        ("#/a~1b~0c%20d", {"type": "object"}),
        ("http://x/y", True),
        (7, True),
    ],
)
def test_a_reference_leads_to_a_schema_or_to_one_that_says_nothing(
    reference: object, found: object
) -> None:
    assert referred(reference, WHOLE) == found


def test_references_that_lead_to_each_other_alone_are_a_circle() -> None:
    whole = {
        "to me": {"$ref": "#/to me"},
        "there": {"$ref": "#/back"},
        "back": {"$ref": "#/there"},
        "to a schema": {"$ref": "#/tree"},
        "tree": {"items": {"$ref": "#/tree"}},
        "to nothing": {"$ref": "#/nowhere"},
        "by a choice": {"anyOf": [{"type": "null"}, {"allOf": [{"$ref": "#/by a choice"}]}]},
        "to a circle": {"$ref": "#/by a choice"},
    }

    circles = {name for name, schema in whole.items() if is_circle(schema, whole)}

    assert circles == {"to me", "there", "back", "by a choice"}
    assert not is_circle(True, whole)


def test_where_there_is_no_schema_a_reference_says_nothing() -> None:
    assert referred("#/a", [1]) is True


def test_a_reference_is_missing_where_no_schema_is() -> None:
    missing = ["#/nowhere", "http://x/y", "other.json#/$defs/a", "#a", "#/list", "#/$defs/a/type"]

    assert all(is_missing(reference, WHOLE) for reference in missing)
    assert not any(is_missing(reference, WHOLE) for reference in ("#", "#/$defs/a", "#/list/0"))
