"""Forms that the values of a schema's keywords must have: what reads them later relies on it."""

from typing import Any, cast

from runtime.errors import GrammarError
from runtime.grammar.choices import BOUNDS

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
_PAIRS = ("Length", "Items", "Properties")
_SCHEMAS = (
    "additionalProperties", "additionalItems", "propertyNames", "unevaluatedProperties",
)  # fmt: skip
_MAPPINGS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf")
_MOST_COUNT = 1 << 31
_MOST_INTEGER = 1 << 63
_MOST_NUMBER = 10**308


def check_forms(rules: dict[str, Any]) -> None:
    """Raise GrammarError for the first keyword whose value has a wrong form.

    Counts that are whole floats become integers, in place.
    """
    _check_types(rules)
    _check_schemas(rules)
    _check_numbers(rules)
    _check_counts(rules)
    for name in ("pattern", "$ref"):
        if not isinstance(rules.get(name, ""), str):
            raise _wrong(name, "a string")
    if "enum" in rules and not (isinstance(rules["enum"], list) and rules["enum"]):
        raise _wrong("enum", "a list of values, one at least")
    required = rules.get("required", [])
    if not isinstance(required, list) or not all(
        isinstance(key, str) for key in cast(list[object], required)
    ):
        raise _wrong("required", "a list of strings")


def _wrong(name: str, form: str) -> GrammarError:
    return GrammarError(f"the schema keyword {name!r} must be {form}")


def _check_types(rules: dict[str, Any]) -> None:
    if "type" not in rules:
        return
    types: Any = rules["type"]
    listed = cast(list[object], types) if isinstance(types, list) else [types]
    for kind in listed:
        if kind not in TYPES:
            raise GrammarError(f"Unsupported type {kind!r}: a schema's type is one of {TYPES}")
    if not listed:
        raise _wrong("type", "a type, or a list of types")


def _check_schemas(rules: dict[str, Any]) -> None:
    for name in _SCHEMAS:
        if not _is_schema(rules.get(name, True)):
            raise _wrong(name, "a schema")
    items = rules.get("items", True)
    lists = {name: rules[name] for name in (*_LISTS, "prefixItems") if name in rules}
    if isinstance(items, list):
        lists["items"] = cast(object, items)
    elif not _is_schema(items):
        raise _wrong("items", "a schema")
    for name, parts in lists.items():
        if not isinstance(parts, list) or not all(map(_is_schema, cast(list[object], parts))):
            raise _wrong(name, "a list of schemas")
        if not parts and name in _LISTS:
            raise _wrong(name, "a list of schemas, one at least")
    for name in _MAPPINGS:
        inner = rules.get(name, {})
        if not isinstance(inner, dict) or not all(
            map(_is_schema, cast(dict[str, object], inner).values())
        ):
            raise _wrong(name, "an object of schemas")


def _is_schema(value: object) -> bool:
    return isinstance(value, bool | dict)


def _check_numbers(rules: dict[str, Any]) -> None:
    types = cast(object, rules.get("type"))
    integers = types == "integer"
    most = _MOST_INTEGER if integers else _MOST_NUMBER
    for name in BOUNDS:
        if name not in rules:
            continue
        value = rules[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(name, "a number")
        if not -most < value < most:
            least = "2^63" if integers else "10^308"
            raise GrammarError(f"the schema keyword {name!r} must be below {least} in size")
        if name == "multipleOf" and value <= 0:
            raise _wrong(name, "a number above 0")


def _check_counts(rules: dict[str, Any]) -> None:
    for name in _COUNTS:
        if name not in rules:
            continue
        value = rules[name]
        if isinstance(value, float) and value.is_integer():
            rules[name] = value = int(value)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 0 <= value < _MOST_COUNT:
            raise _wrong(name, "an integer from 0 to 2^31 - 1")
    for name in _PAIRS:
        least, most = rules.get(f"min{name}", 0), rules.get(f"max{name}")
        if most is not None and least > most:
            raise GrammarError(f"the schema keyword 'min{name}' is above 'max{name}'")
