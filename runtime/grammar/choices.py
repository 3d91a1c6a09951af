"""Schemas that choose among others, or refer to one: the compiler reads nothing beside that."""

import itertools
from typing import Any, cast

from runtime.errors import GrammarError
from runtime.grammar.values import said_types, types_of
from runtime.schema_reference import MOST_STEPS, referred

CHOICES = ("$ref", "anyOf", "oneOf", "allOf")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# What a keyword speaks of.
OF_TYPE = {
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": BOUNDS,
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    "object": (
        "properties", "patternProperties", "propertyNames", "required", "additionalProperties",
        "unevaluatedProperties", "minProperties", "maxProperties",
    ),
}  # fmt: skip
_SAID = frozenset((*CHOICES, "type", "enum", "const"))


def check_choice(rules: dict[str, Any], root: object) -> None:
    """Raise GrammarError for what stands beside a choice and is not said in the chosen, too.

    root  the whole schema, for references
    """
    choices = [name for name in CHOICES if name in rules]
    if not choices:
        return
    said = [*choices[1:], *(n for names in OF_TYPE.values() for n in names), "enum", "const"]
    beside = [name for name in said if name in rules]
    if not beside and "type" in rules:
        chosen = {choices[0]: _typed(rules[choices[0]], rules["type"])}
        beside = [] if _holds(chosen, _types(rules), root, set()) else ["type"]
    if beside:
        raise GrammarError(
            f"the schema keyword {beside[0]!r} cannot be enforced beside {choices[0]!r}: "
            "say it in each of the schemas there"
        )


def shares_no_value(rules: dict[str, Any], root: object) -> bool:
    """Whether a schema has `oneOf`, and no value fits two of its schemas: it says `anyOf` then."""
    parts = rules.get("oneOf")
    if not isinstance(parts, list):
        return False
    told = [_followed(part, root) for part in cast(list[object], parts)]
    return all(_are_apart(a, b, root) for a, b in itertools.combinations(told, 2))


def _followed(part: object, root: object) -> dict[str, Any]:
    """Return the schema that a reference leads to; nothing of what is none."""
    for _ in range(MOST_STEPS):
        if not isinstance(part, dict):
            break
        rules = cast(dict[str, Any], part)
        if "$ref" not in rules:
            return rules
        part = referred(rules["$ref"], root)
    return {}


def _are_apart(a: dict[str, Any], b: dict[str, Any], root: object) -> bool:
    """Whether two schemas differ in their types, their values, or those of a property of both."""
    if _differ(a, b):
        return True
    first, second = _always_there(a), _always_there(b)
    return any(
        _differ(_followed(first[name], root), _followed(second[name], root))
        for name in first.keys() & second.keys()
    )


def _always_there(rules: dict[str, Any]) -> dict[str, object]:
    """Return the required properties of what is always an object."""
    properties, required = rules.get("properties"), rules.get("required")
    if said_types(rules) != ["object"] or not isinstance(properties, dict):
        return {}
    names = cast(list[object], required) if isinstance(required, list) else []
    return {n: rule for n, rule in cast(dict[str, object], properties).items() if n in names}


def _differ(a: dict[str, Any], b: dict[str, Any]) -> bool:
    first, second = _possible_types(a), _possible_types(b)
    if first and second and not first & second:
        return True
    values, others = _values(a), _values(b)
    return bool(values and others) and not any(
        v == w and types_of(v) == types_of(w) for v, w in itertools.product(values, others)
    )


def _possible_types(rules: dict[str, Any]) -> set[str]:
    """Return the types that a schema names, or those of the values that it names."""
    if "type" in rules:
        return _types(rules)
    return {kind for value in _values(rules) for kind in types_of(value)}


def _values(rules: dict[str, Any]) -> list[object]:
    """Return the values that a schema names, none where it names none."""
    if "const" in rules:
        return [rules["const"]]
    return cast(list[object], rules["enum"]) if isinstance(rules.get("enum"), list) else []


def implied_types(rules: dict[str, Any]) -> list[str]:
    """Return the types that the keywords of a schema speak of."""
    return [t for t, names in OF_TYPE.items() if not rules.keys().isdisjoint(names)]


def is_bare(part: object) -> bool:
    """Whether a schema says nothing of types, so that one can be said in it."""
    return isinstance(part, dict) and cast(dict[str, Any], part).keys().isdisjoint(_SAID)


def _typed(choice: object, types: object) -> object:
    """Return a choice as it is once bare schemas are given a type."""
    if not isinstance(choice, list):
        return choice
    return [{"type": types} if is_bare(part) else part for part in cast(list[object], choice)]


def _types(rules: dict[str, Any]) -> set[str]:
    types = set(said_types(rules))
    return types | {"integer"} if "number" in types else types


def _holds(rules: dict[str, Any], types: set[str], root: object, seen: set[int]) -> bool:
    """Whether the choice of a schema gives values of `types` only."""
    if "$ref" in rules:
        return _is_within(referred(rules["$ref"], root), types, root, seen)
    for name in CHOICES[1:]:
        if isinstance(rules.get(name), list):
            parts = cast(list[object], rules[name])
            held = [_is_within(part, types, root, seen) for part in parts]
            return any(held) if name == "allOf" else all(held)
    return False


def _is_within(part: object, types: set[str], root: object, seen: set[int]) -> bool:
    if not isinstance(part, dict):
        return part is False
    rules = cast(dict[str, Any], part)
    if id(rules) in seen:
        return True
    seen.add(id(rules))
    if "type" in rules:
        return _types(rules) <= types
    if "enum" in rules or "const" in rules:
        return all(types_of(value) & types for value in _values(rules))
    if implied := implied_types(rules):
        return set(implied) <= types
    return _holds(rules, types, root, seen)
