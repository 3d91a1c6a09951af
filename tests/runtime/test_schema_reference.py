"""Tests of runtime.schema_reference: where references inside a schema lead."""

import pytest

from runtime.schema_reference import referred

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


def test_where_there_is_no_schema_a_reference_says_nothing() -> None:
    assert referred("#/a", [1]) is True
