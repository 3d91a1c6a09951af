"""Tests of runtime.schema_reference: where references inside a schema lead."""

import pytest

from runtime.schema_reference import is_circle, referred

WHOLE = {"$defs": {"a": {"type": "null"}, "b": {"$defs": {"c": False}}}}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", WHOLE),
        ("#/$defs/a", {"type": "null"}),
        ("#/$defs/b/$defs/c", False),
        ("#/$defs/missing", True),
        ("#/$defs/a/type/deeper", True),
        (7, WHOLE),
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
    }

    circles = {name for name, schema in whole.items() if is_circle(schema, whole)}

    assert circles == {"to me", "there", "back"}
    assert not is_circle(True, whole)


def test_where_there_is_no_schema_a_reference_says_nothing() -> None:
    assert referred("#/a", [1]) is True
