"""JSON Schema that a grammar can hold an output to, and what of it none can.

A keyword that would be dropped in silence makes outputs that do not validate: such a schema is
refused. Runs in the grammar's process, where a schema of any depth harms nobody else.
"""

from collections.abc import Iterator
from typing import Any, cast

from runtime.errors import GrammarError

# Source: measured, the compiler takes them without a word and enforces nothing.
_NOT_ENFORCED = (
    "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if", "not",
    "maxContains", "minContains", "then", "unevaluatedItems",
)  # fmt: skip
_SCHEMAS = ("additionalProperties", "items", "propertyNames", "additionalItems")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPPINGS = ("properties", "patternProperties", "$defs", "definitions")


def prepare_schema(schema: object) -> None:
    """Rewrite a decoded schema, in place, so that the compiler holds outputs to all of it.

    Raises GrammarError for the first keyword that it would not enforce.
    """
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        rules = cast(dict[str, Any], part)
        for name in _NOT_ENFORCED:
            if name in rules:
                raise GrammarError(f"the schema keyword {name!r} cannot be enforced")
        if rules.get("uniqueItems"):
            raise GrammarError("the schema keyword 'uniqueItems' cannot be enforced")
        _bound_by_pattern(rules)
        waiting.extend(_inner(rules))


def prepare_tag(tag: object) -> None:
    """Prepare every schema in a decoded structural tag. Raises GrammarError."""
    waiting = [tag]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(cast(list[object], part))
        elif isinstance(part, dict):
            inner = cast(dict[str, Any], part)
            if inner.get("type") == "json_schema":
                prepare_schema(inner.get("json_schema"))
            else:
                waiting.extend(inner.values())


def _bound_by_pattern(rules: dict[str, Any]) -> None:
    """Say bounds of a string's length as a pattern.

    Source: measured, a string with bounds may hold control characters, which JSON forbids; one
    with a pattern may not.
    """
    bounds = rules.keys() & {"minLength", "maxLength"}
    if not bounds or rules.keys() & {"pattern", "format", "enum", "const"}:
        return
    least, most = rules.get("minLength", 0), rules.get("maxLength")
    if not all(isinstance(bound, int) for bound in (least, 0 if most is None else most)):
        return  # for the compiler to refuse
    if 0 <= least <= (least if most is None else most):
        for name in bounds:
            del rules[name]
        rules["pattern"] = rf"^[\s\S]{{{least},{'' if most is None else most}}}$"


def _inner(rules: dict[str, Any]) -> Iterator[object]:
    for name in _SCHEMAS:
        yield rules.get(name)
    for name in _LISTS:
        if isinstance(rules.get(name), list):
            yield from rules[name]
    for name in _MAPPINGS:
        if isinstance(rules.get(name), dict):
            yield from rules[name].values()
