"""Values that a JSON schema names, in `enum` or `const`: those that the rest of the schema allows.

The compiler lets an output be any of them and reads no other keyword beside them.
"""

import operator
import re
from fractions import Fraction
from typing import Any, cast

from runtime.errors import GrammarError

# Beside arrays and objects that are named, what is said of their parts.
_OF_PARTS = (
    "items", "prefixItems", "properties", "patternProperties", "propertyNames", "required",
    "additionalProperties", "unevaluatedProperties",
)  # fmt: skip
_LARGEST = 1 << 63
_EXCLUDES = {
    "minimum": operator.lt,
    "exclusiveMinimum": operator.le,
    "maximum": operator.gt,
    "exclusiveMaximum": operator.ge,
}


def keep_named(rules: dict[str, Any]) -> None:
    """Leave out, in place, the named values that other keywords of the same schema exclude.

    Formats exclude none. Raises GrammarError where nothing is left, or where it cannot be told.
    """
    name = "enum" if "enum" in rules else "const"
    values = rules["enum"] if "enum" in rules else [rules["const"]] if "const" in rules else None
    if not isinstance(values, list) or not values:
        return
    listed = cast(list[Any], values)
    _check_integers(listed, name)
    kept = [value for value in listed if _is_allowed(value, rules)]
    if not kept:
        raise GrammarError(f"no value of the schema keyword {name!r} fits what is said beside it")
    if len(kept) < len(listed) or "const" in rules.keys() - {name}:
        rules.pop("const", None)
        rules["enum"] = kept


def types_of(value: object) -> set[str]:
    """Return the types that a JSON value is of; a whole number is of two."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}


def said_types(rules: dict[str, Any]) -> list[str]:
    """Return the types that a schema names."""
    types = rules.get("type")
    listed = cast(list[object], types) if isinstance(types, list) else [types]
    return [name for name in listed if isinstance(name, str)]


def _check_integers(values: list[Any], name: str) -> None:
    """Refuse integers that the compiler writes as floats, which are others."""
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | dict):
            parts = cast(list[Any] | dict[str, Any], value)
            waiting.extend(parts.values() if isinstance(parts, dict) else parts)
        elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise GrammarError(f"an integer of the keyword {name!r} must be below 2^63 in size")


def _is_allowed(value: Any, rules: dict[str, Any]) -> bool:
    types = said_types(rules)
    if types and types_of(value).isdisjoint(types):
        return False
    const = rules.get("const", value)
    if types_of(value) != types_of(const) or value != const:
        return False
    match value:
        case bool() | None:
            return True
        case int() | float():
            return _number_is_allowed(value, rules)
        case str():
            return _is_counted(len(value), rules, "Length") and _matches(value, rules)
        case _:
            for name in _OF_PARTS:
                if name in rules:
                    raise GrammarError(
                        f"the schema keyword {name!r} cannot be enforced beside values"
                    )
            counted = "Items" if isinstance(value, list) else "Properties"
            return _is_counted(len(cast(list[Any] | dict[str, Any], value)), rules, counted)


def _number_is_allowed(value: float, rules: dict[str, Any]) -> bool:
    for name, excludes in _EXCLUDES.items():
        bound = rules.get(name)
        if isinstance(bound, int | float) and excludes(value, bound):
            return False
    step = rules.get("multipleOf")
    if not isinstance(step, int | float) or not step:
        return True
    return Fraction(repr(value)) % Fraction(repr(step)) == 0


def _is_counted(count: int, rules: dict[str, Any], what: str) -> bool:
    least, most = rules.get(f"min{what}"), rules.get(f"max{what}")
    if isinstance(least, int | float) and count < least:
        return False
    return not (isinstance(most, int | float) and count > most)


def _matches(value: str, rules: dict[str, Any]) -> bool:
    pattern = rules.get("pattern")
    if not isinstance(pattern, str):
        return True
    try:
        return re.search(pattern, value) is not None
    except re.error:
        raise GrammarError(f"the pattern {pattern!r} cannot be enforced beside values") from None
