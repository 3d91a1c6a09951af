"""Keys of objects as the compiler has to be given them.

It knows a required key only where `properties` has it, reads `propertyNames` only where no key is
named, and takes each key for that of one schema, whichever others speak of it.
"""

import copy
import re
from typing import Any, cast

from runtime.errors import GrammarError
from runtime.grammar.values import said_types

_NAMED = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")


def prepare_keys(rules: dict[str, Any]) -> None:
    """Rewrite what a schema says of keys, in place. Raises GrammarError for what no grammar holds.

    Patterns are read as they came: this goes before they are said in another way.
    """
    if rules.keys().isdisjoint(_NAMED):
        _say_names(rules)
        _check_patterns(rules)
        _say_required(rules)


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
    said = {p: rule for p, rule in cast(dict[str, Any], patterns).items() if rule not in (True, {})}
    for name, rule in cast(dict[str, Any], properties).items():
        for pattern in said:
            if rule != said[pattern] and _may_match(pattern, name):
                raise GrammarError(
                    f"the property {name!r} matches the pattern {pattern!r} of "
                    "'patternProperties': both together cannot be enforced"
                )
    if said and _others(rules) not in (False, None):
        raise GrammarError(
            "the schema keyword 'patternProperties' cannot be enforced beside other properties: "
            "say that 'additionalProperties' is false"
        )


def _others(rules: dict[str, Any]) -> Any:
    """Return the schema of keys that nothing else speaks of, None where none is said."""
    return rules.get("additionalProperties", rules.get("unevaluatedProperties"))


def _may_match(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True


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
