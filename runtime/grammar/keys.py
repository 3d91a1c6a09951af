"""Keys of objects as the compiler has to be given them.

It knows a required key only where `properties` has it, reads `propertyNames` only where no key is
named, and takes each key for that of one schema, whichever others speak of it.
"""

import copy
import itertools
import re
from collections.abc import Callable
from typing import Any, cast

from runtime.errors import GrammarError
from runtime.grammar.values import said_types

# What the keys begin with that an anchored pattern matches.
_BEGINNING = re.compile(r"\^((?:[\w /:@-](?![?*{]))*)", re.ASCII)
_NAMED = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")


def prepare_keys(rules: dict[str, Any]) -> None:
    """Rewrite what a schema says of keys, in place. Raises GrammarError for what no grammar holds.

    Patterns are read as they came: this goes before they are said in another way.
    """
    if rules.keys().isdisjoint(_NAMED):
        _say_names(rules)
        _check_patterns(rules)
        _say_required(rules)
        _check_least(rules)


def _say_names(rules: dict[str, Any]) -> None:
    """Say that names are strings: without a type the compiler writes any value there."""
    names = rules.get("propertyNames")
    for other in ("properties", "patternProperties"):
        if isinstance(names, dict) and rules.get(other):
            raise GrammarError(
                f"the schema keywords 'propertyNames' and {other!r} cannot be enforced together"
            )
    if names is True or (names is not None and _others(rules) is False):
        del rules["propertyNames"]  # it allows all names, or there are none
    elif isinstance(names, dict):
        named = cast(dict[str, Any], names)
        if "type" not in named or "string" in said_types(named):
            named["type"] = "string"


def _check_patterns(rules: dict[str, Any]) -> None:
    """Refuse keys that would have to follow the schema of a pattern and another one."""
    patterns, properties = rules.get("patternProperties"), rules.get("properties", {})
    if not isinstance(patterns, dict) or not isinstance(properties, dict):
        return
    ruled = cast(dict[str, Any], patterns)
    said = {p: rule for p, rule in ruled.items() if rule not in (True, {})}
    for name, rule in cast(dict[str, Any], properties).items():
        for pattern in ruled:
            # One that says nothing does harm only where the compiler takes the name by it.
            search = re.search if pattern in said else re.fullmatch
            if not _are_equal(rule, ruled[pattern]) and _may_match(pattern, name, search):
                raise GrammarError(
                    f"the property {name!r} matches the pattern {pattern!r} of "
                    "'patternProperties': both together cannot be enforced"
                )
    for a, b in itertools.combinations(ruled, 2):
        if not _are_equal(ruled[a], ruled[b]) and not _begin_apart(a, b):
            raise GrammarError(
                f"a property may match the patterns {a!r} and {b!r} of 'patternProperties': "
                "both together cannot be enforced"
            )
    if said and _others(rules) not in (False, None):
        raise GrammarError(
            "the schema keyword 'patternProperties' cannot be enforced beside other properties: "
            "say that 'additionalProperties' is false"
        )


def _others(rules: dict[str, Any]) -> Any:
    """Return the schema of keys that nothing else speaks of, None where none is said."""
    return rules.get("additionalProperties", rules.get("unevaluatedProperties"))


def _are_equal(a: object, b: object) -> bool:
    return a == b or (a in (True, {}) and b in (True, {}))


def _may_match(pattern: str, name: str, search: Callable[[str, str], re.Match[str] | None]) -> bool:
    try:
        return search(pattern, name) is not None
    except re.error:
        return True


def _begin_apart(a: str, b: str) -> bool:
    """Whether two patterns are of keys that begin with different letters."""
    first, second = _beginning(a), _beginning(b)
    return not (first.startswith(second) or second.startswith(first))


def _beginning(pattern: str) -> str:
    found = None if "|" in pattern else _BEGINNING.match(pattern)
    return found[1] if found else ""


def _say_required(rules: dict[str, Any]) -> None:
    """Name required keys in `properties`, with what is said of others."""
    required, properties = rules.get("required"), rules.get("properties", {})
    if not isinstance(required, list) or not isinstance(properties, dict):
        return
    names = [name for name in cast(list[object], required) if isinstance(name, str)]
    missing = [name for name in names if name not in properties]
    if not missing or "object" not in (said_types(rules) or ["object"]):
        return
    if rules.get("patternProperties") or "propertyNames" in rules:
        raise GrammarError(f"the required property {missing[0]!r} must be among 'properties'")
    others = True if _others(rules) is None else _others(rules)
    if others is False:
        raise GrammarError(f"the required property {missing[0]!r} is not allowed by the schema")
    if "properties" not in rules:
        rules.setdefault("additionalProperties", others)
    named = {name: copy.deepcopy(others) for name in missing}
    rules["properties"] = {**cast(dict[str, Any], properties), **named}


def _check_least(rules: dict[str, Any]) -> None:
    """Refuse a least number of keys that one key, written more than once, would reach."""
    least, required = rules.get("minProperties"), rules.get("required")
    patterns = bool(rules.get("patternProperties"))
    if not isinstance(least, int | float) or not (
        patterns or "propertyNames" in rules or _others(rules) not in (False, None)
    ):
        return
    sure = len(set(map(str, cast(list[object], required)))) if isinstance(required, list) else 0
    # A key by a pattern may be a required one again.
    if least > max(1, sure + (not patterns)):
        raise GrammarError(
            "the schema keyword 'minProperties' cannot be enforced beside keys that are not named: "
            "nothing keeps them different from each other"
        )
