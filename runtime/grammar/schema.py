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


def check_schema(schema: object) -> None:
    """Raise GrammarError for the first keyword of a schema that would not be enforced."""
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
        waiting.extend(_inner(rules))


def _inner(rules: dict[str, Any]) -> Iterator[object]:
    for name in _SCHEMAS:
        yield rules.get(name)
    for name in _LISTS:
        if isinstance(rules.get(name), list):
            yield from rules[name]
    for name in _MAPPINGS:
        if isinstance(rules.get(name), dict):
            yield from rules[name].values()
