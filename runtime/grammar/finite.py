"""Schemas that no finite value fits, so that an output would never end."""

from collections.abc import Iterable
from typing import Any, cast

from runtime.grammar.choices import CHOICES
from runtime.grammar.values import said_types
from runtime.schema_reference import referred


def without_end(parts: Iterable[dict[str, Any]], root: object) -> dict[str, Any] | None:
    """Return one of all parts of a schema that no finite value fits, None if there is none.

    root  the whole schema, for references
    """
    waiting = list(parts)
    finite: set[int] = set()
    while True:
        left = [rules for rules in waiting if not _ends(rules, root, finite)]
        if len(left) == len(waiting):
            break
        finite.update(id(rules) for rules in waiting)
        finite.difference_update(id(rules) for rules in left)
        waiting = left
    # A reference only leads to what is to blame.
    return next((rules for rules in waiting if "$ref" not in rules), next(iter(waiting), None))


def _ends(rules: dict[str, Any], root: object, finite: set[int]) -> bool:
    """Whether a value that fits can end, by what is known to be finite."""

    def may_end(part: object) -> bool:
        if isinstance(part, dict):
            return id(cast(object, part)) in finite
        return part is not False

    if "$ref" in rules:
        return may_end(referred(rules["$ref"], root))
    choice = next((name for name in CHOICES if isinstance(rules.get(name), list)), None)
    if choice is not None:
        held = [may_end(part) for part in cast(list[object], rules[choice])]
        return all(held) if choice == "allOf" else any(held)
    types = said_types(rules)
    if "enum" in rules or "const" in rules or not types:
        return True
    return any(
        _array_ends(rules, may_end) if kind == "array"
        else _object_ends(rules, may_end) if kind == "object"
        else True
        for kind in types
    )  # fmt: skip


def _array_ends(rules: dict[str, Any], may_end: Any) -> bool:
    least = rules.get("minItems", 0)
    first = rules.get("prefixItems", [])
    items = rules.get("items", True)
    if isinstance(items, list):
        first, items = cast(list[object], items), rules.get("additionalItems", True)
    if not isinstance(least, int) or not isinstance(first, list):
        return True
    needed: list[object] = [*cast(list[object], first)[:least]]
    if least > len(cast(list[object], first)):
        needed.append(items)
    return all(may_end(part) for part in needed)


def _object_ends(rules: dict[str, Any], may_end: Any) -> bool:
    required, properties = rules.get("required"), rules.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return True
    named = cast(dict[str, object], properties)
    return all(may_end(named.get(str(key), True)) for key in cast(list[object], required))
