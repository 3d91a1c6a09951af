"""Tests of runtime.server.reply_schemas: what its words make; the rest is in the documentation."""

from typing import Any

import jsonschema
import pytest

import runtime.server.reply_schemas as reply_schemas
from runtime.server.reply_schemas import INTEGER, NULL, STRING, array, either, named, record

PUBLIC = {name for name in vars(reply_schemas) if name.isupper() and not name.startswith("_")}


def fits(value: Any, schema: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def test_a_record_has_its_fields_and_may_have_others() -> None:
    schema = record(a=INTEGER, optional={"b": either(STRING, NULL)})

    assert fits({"a": 1}, schema)
    assert fits({"a": 1, "b": None}, schema)
    assert not fits({"b": "x"}, schema)
    assert not fits({"a": 1, "b": 2}, schema)


def test_lists_and_words() -> None:
    assert fits(["x", None], array(named("x", None)))
    assert not fits(["y"], array(named("x", None)))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(getattr(reply_schemas, name))
