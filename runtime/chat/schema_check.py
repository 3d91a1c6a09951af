"""Checks whether a JSON schema allows a value: types, enumerations, bounds, members, unions.

`pattern`, `format`, `not`, `if` and the rarer keywords are not checked: a regular expression of a
client could take forever. Malformed keywords allow everything.
"""

from collections.abc import Iterator
from typing import Any, cast

from runtime.schema_reference import referred

# A check of a few thousand steps takes some milliseconds of the event loop.
MOST_STEPS = 4000
_CHARS_PER_STEP = 4096
UNIONS = ("anyOf", "oneOf")


class Undecided(Exception):
    """The check would take too long."""


class SchemaCheck:
    """Checks values against parts of one whole schema, within a limited number of steps.

    root  where references lead
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps = 0

    def spend(self, chars: int = 0) -> None:
        """Count one step, and more for long texts. Raises Undecided."""
        self._steps += 1 + chars // _CHARS_PER_STEP
        if self._steps > MOST_STEPS:
            raise Undecided

    def allows(self, value: Any, schema: Any) -> bool:
        """Return whether `schema` allows a decoded value. Raises Undecided."""
        self.spend()
        if not isinstance(schema, dict):
            return schema is not False
        rules = cast(dict[str, Any], schema)
        return (
            has_type(value, rules)
            and _is_listed(value, rules)
            and _is_within(value, rules)
            and all(self.allows(value, part) for part in self.conjuncts(rules))
            and all(
                any(self.allows(value, part) for part in schemas(rules[union]))
                for union in UNIONS
                if schemas(rules.get(union))
            )
            and self._members_allowed(value, rules)
        )

    def conjuncts(self, rules: dict[str, Any]) -> list[Any]:
        """Return the schemas that hold besides `rules`: its reference's and those of `allOf`."""
        parts = schemas(rules.get("allOf"))
        reference = rules.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            return [referred(reference, self._root), *parts]
        return parts

    def _members_allowed(self, value: Any, rules: dict[str, Any]) -> bool:
        if isinstance(value, list):
            items = cast(list[Any], value)
            return all(self.allows(v, item_schema(rules, k)) for k, v in enumerate(items))
        if isinstance(value, dict):
            members = cast(dict[str, Any], value)
            required = rules.get("required")
            names = cast(list[Any], required) if isinstance(required, list) else []
            return all(name in members for name in names if isinstance(name, str)) and all(
                self.allows(member, property_schema(rules, name))
                for name, member in members.items()
            )
        return True


def schemas(keyword: Any) -> list[Any]:
    """Return the schemas of `anyOf`, `oneOf` or `allOf`; none where it is malformed."""
    return cast(list[Any], keyword) if isinstance(keyword, list) else []


def types(rules: dict[str, Any]) -> list[str] | None:
    """Return the types that a schema names, None where it names none."""
    named = rules.get("type")
    if isinstance(named, str):
        return [named]
    listed = [name for name in schemas(named) if isinstance(name, str)]
    return listed or None


def has_type(value: Any, rules: dict[str, Any]) -> bool:
    """Return whether a value has one of the types that a schema names."""
    wanted = types(rules)
    return wanted is None or any(kind in wanted for kind in _kinds(value))


def item_schema(rules: dict[str, Any], index: int) -> Any:
    """Return the schema of an array's item."""
    first = schemas(rules.get("prefixItems"))
    return first[index] if index < len(first) else rules.get("items", True)


def property_schema(rules: dict[str, Any], name: str) -> Any:
    """Return the schema of an object's member."""
    properties = rules.get("properties")
    if isinstance(properties, dict) and name in properties:
        return cast(dict[str, Any], properties)[name]
    return True if "patternProperties" in rules else rules.get("additionalProperties", True)


def _kinds(value: Any) -> Iterator[str]:
    match value:
        case bool():
            yield "boolean"
        case int() | float():
            yield "number"
            if value == value // 1:
                yield "integer"
        case str():
            yield "string"
        case list():
            yield "array"
        case dict():
            yield "object"
        case _:
            yield "null"


def _is_listed(value: Any, rules: dict[str, Any]) -> bool:
    if "const" in rules and not _equal(value, rules["const"]):
        return False
    listed = rules.get("enum")
    return not isinstance(listed, list) or any(
        _equal(value, choice) for choice in cast(list[Any], listed)
    )


def _equal(value: Any, other: Any) -> bool:
    """Compare as JSON does: 1 is 1.0, but not true."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, list) and isinstance(other, list):
        items, others = cast(list[Any], value), cast(list[Any], other)
        return len(items) == len(others) and all(map(_equal, items, others))
    if isinstance(value, dict) and isinstance(other, dict):
        mine, its = cast(dict[str, Any], value), cast(dict[str, Any], other)
        return mine.keys() == its.keys() and all(_equal(mine[name], its[name]) for name in mine)
    return value == other


def _is_within(value: Any, rules: dict[str, Any]) -> bool:
    """Check the bounds of a number, and of the length of a string."""
    if isinstance(value, str):
        least, most = _bound(rules, "minLength"), _bound(rules, "maxLength")
        return (least is None or len(value) >= least) and (most is None or len(value) <= most)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    least, above = _bound(rules, "minimum"), _bound(rules, "exclusiveMinimum")
    most, below = _bound(rules, "maximum"), _bound(rules, "exclusiveMaximum")
    return (
        (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    )


def _bound(rules: dict[str, Any], name: str) -> float | None:
    bound = rules.get(name)
    return bound if isinstance(bound, int | float) and not isinstance(bound, bool) else None
