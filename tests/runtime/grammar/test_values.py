"""Named values that the rest of their schema excludes are left out, or the schema is refused."""

from typing import Any

import pytest

from runtime.errors import GrammarError
from runtime.grammar.values import keep_named, types_of


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({"enum": ["a", None, 1], "type": "string"}, ["a"]),
        ({"enum": ["a", None, 1], "type": ["string", "null"]}, ["a", None]),
        ({"enum": [1, 1.0, 1.5, True], "type": "integer"}, [1, 1.0]),
        ({"enum": [1, 2, 3, 4], "minimum": 2, "exclusiveMaximum": 4}, [2, 3]),
        ({"enum": [0.3, 0.35, "x"], "multipleOf": 0.1}, [0.3, "x"]),
        ({"enum": ["a", "abc", "abcde", 7], "minLength": 2, "maxLength": 4}, ["abc", 7]),
        ({"enum": ["ab", "ba"], "pattern": "^a"}, ["ab"]),
        ({"enum": [[], [1], [1, 2]], "minItems": 1, "maxItems": 1}, [[1]]),
        ({"enum": [{}, {"a": 1}], "minProperties": 1}, [{"a": 1}]),
        ({"enum": [0, False, 1], "const": 0}, [0]),
    ],
)
def test_only_values_that_fit_are_kept(rules: dict[str, Any], kept: list[Any]) -> None:
    keep_named(rules)

    assert [(type(v), v) for v in rules["enum"]] == [(type(v), v) for v in kept]
    assert "const" not in rules


@pytest.mark.parametrize(
    "rules",
    [
        {"enum": ["a", "b"], "type": "string", "maxLength": 1},
        {"enum": ["2000-13-01"], "format": "date"},
        {"const": {"a": [1]}, "type": "object"},
        {"enum": []},
        {"enum": "a"},
        {"minimum": 3},
    ],
)
def test_what_fits_is_left_as_it_is(rules: dict[str, Any]) -> None:
    before = dict(rules)

    keep_named(rules)

    assert rules == before


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"enum": [1, 2], "type": "string"}, "no value of the schema keyword 'enum' fits"),
        ({"const": "a", "pattern": "b"}, "no value of the schema keyword 'const' fits"),
        ({"enum": [[1]], "items": {"type": "string"}}, "'items' cannot be enforced beside values"),
        ({"enum": ["a"], "pattern": r"\p{L}"}, "cannot be enforced beside values"),
        ({"const": (1 << 64) - 1}, "'const' must be below 2"),
        ({"enum": [{"a": [1 << 63]}]}, "'enum' must be below 2"),
    ],
)
def test_what_no_value_or_nobody_can_say_fits_is_refused(
    rules: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason):
        keep_named(rules)


def test_whole_numbers_are_integers() -> None:
    assert types_of(3) == types_of(3.0) == {"integer", "number"}
    assert types_of(3.5) == {"number"}
    assert types_of(True) == {"boolean"}
