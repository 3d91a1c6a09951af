"""Tests of runtime.chat.schema_check, with a validator as judge."""

from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from runtime.chat.schema_check import MOST_STEPS, SchemaCheck, Undecided
from tests.runtime.chat.schemas import near_value, random_root


def test_it_agrees_with_a_validator() -> None:
    verdicts = [0, 0]
    for seed in range(800):
        random = Random(seed)
        root = random_root(random)
        for _ in range(3):
            value = near_value(random)
            expected = Draft202012Validator(root).is_valid(value)
            assert SchemaCheck(root).allows(value, root) == expected, (seed, root, value)
            verdicts[expected] += 1

    assert min(verdicts) > 250


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"type": ["string", 3]},
        {"enum": "abc"},
        {"anyOf": {"type": "string"}},
        {"minLength": "3", "maximum": True},
        {"required": {"a": 1}, "properties": [1]},
        {"$ref": 7},
        {"$ref": "other.json"},
        {"pattern": "^b$"},
    ],
    ids=str,
)
@pytest.mark.parametrize("value", ["a", {"a": "b"}])
def test_what_is_malformed_or_not_checked_allows_everything(schema: Any, value: Any) -> None:
    allowed = value == "a" or "string" not in str(schema.get("type"))
    assert SchemaCheck(schema).allows(value, schema) == allowed


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"allOf": [{"$ref": "#"}], "type": "array"},
    ],
)
def test_a_check_that_would_not_end_is_undecided(schema: Any) -> None:
    with pytest.raises((Undecided, RecursionError)):
        SchemaCheck(schema).allows([], schema)


def test_a_value_of_too_many_parts_is_undecided() -> None:
    schema = {"items": {"type": "integer"}}

    assert SchemaCheck(schema).allows([1] * (MOST_STEPS - 1), schema)
    with pytest.raises(Undecided):
        SchemaCheck(schema).allows([1] * MOST_STEPS, schema)


def test_long_texts_count_as_many_steps() -> None:
    SchemaCheck(True).spend(1 << 20)
    with pytest.raises(Undecided):
        SchemaCheck(True).spend(MOST_STEPS << 12)
