"""Random schemas, judged by a validator; `python -m tests.runtime.grammar.judge` judges more."""

import functools
import random

import jsonschema
import pytest

from tests.runtime.grammar.instances import Instances
from tests.runtime.grammar.judge import Judge, TooSlow, closed, validator_limit
from tests.runtime.grammar.random_schemas import MOST, RandomSchemas

SEEDS = 60


@functools.cache
def judge() -> Judge:
    return Judge()


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_a_schema_is_held_to_or_refused_by_name(first: int) -> None:
    verdicts = [judge().judge(seed) for seed in range(first, first + 10)]

    assert "right" in verdicts
    assert all(verdict == "right" or verdict.startswith("refused: #") for verdict in verdicts)


def test_schemas_are_of_every_kind() -> None:
    text = "".join(str(RandomSchemas(random.Random(seed)).schema()) for seed in range(300))

    for keyword in (
        "minLength", "maxItems", "pattern", "enum", "const", "anyOf", "oneOf", "$ref", "required",
        "prefixItems", "minProperties", "patternProperties", "multipleOf", "exclusiveMinimum",
        "format", "propertyNames", "{0,", "名", str(MOST),
    ):  # fmt: skip
        assert keyword in text, keyword


def test_values_that_must_be_let_through_have_no_parts_that_no_schema_names() -> None:
    schema = {"anyOf": [{"properties": {"a": {}}}, {"prefixItems": [{"const": {"properties": 1}}]}]}

    assert closed(schema) == {
        "anyOf": [
            {"properties": {"a": {}}, "additionalProperties": False},
            {"prefixItems": [{"const": {"properties": 1}}], "items": False},
        ]
    }


def test_a_validator_is_not_waited_for_without_end() -> None:
    validator = jsonschema.Draft202012Validator({"pattern": "^(a{2,9})*$"})

    with pytest.raises(TooSlow), validator_limit(0.2):
        validator.is_valid("a" * 500 + "b")


def test_values_that_are_made_fit_mostly_and_those_near_them_seldom() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"pattern": "^[a-z]{3,300}$"}, "b": {"type": "array", "maxItems": 200}},
        "required": ["a", "b"],
    }
    instances = Instances(schema, random.Random(0))
    made = [instances.make() for _ in range(30)]

    fit = [jsonschema.Draft202012Validator(schema).is_valid(value) for value in made]
    near = [jsonschema.Draft202012Validator(schema).is_valid(instances.near(v)) for v in made]
    assert all(fit)
    assert not all(near)
