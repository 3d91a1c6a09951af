"""The arguments of a forced call: the properties of one object, each of them written or not.

That is all a block of V4 calls can say. Whatever else a schema says of the arguments as a whole is
refused: a call that does not fit is worse than none.
"""

from typing import Any, NamedTuple, cast

import msgspec

from runtime.errors import GrammarError
from runtime.schema_reference import MOST_STEPS, referred

SHARED = ("$defs", "definitions")
_REFUSED = (
    "allOf", "anyOf", "const", "dependencies", "dependentRequired", "dependentSchemas", "else",
    "enum", "if", "not", "oneOf", "patternProperties", "propertyNames", "then",
)  # fmt: skip


class _Parameters(msgspec.Struct, frozen=True, rename="camel"):
    """What is relied on of a schema."""

    properties: dict[str, Any] = {}
    required: list[str] = []
    min_properties: int = 0
    max_properties: int | None = None


class Arguments(NamedTuple):
    """What a call may say.

    properties  schema of each argument, in the order of their writing
    required    those that are always written
    shared      definitions that the schemas refer to
    """

    properties: dict[str, Any]
    required: frozenset[str]
    shared: dict[str, Any]


def arguments(schema: object) -> Arguments:
    """Return the arguments that a tool's parameters describe.

    Raises GrammarError for what no block of calls can be held to.
    """
    if not isinstance(schema, dict):
        raise GrammarError("the schema of all arguments must be an object")
    whole = cast(dict[str, Any], schema)
    rules = _object(whole)
    try:
        said = msgspec.convert(rules, _Parameters)
    except msgspec.ValidationError as fault:
        raise GrammarError(str(fault)) from None
    for name in _REFUSED:
        if name in rules:
            raise _not_held(name)
    types: Any = rules.get("type", "object")
    if "object" not in (cast(list[Any], types) if isinstance(types, list) else [types]):
        raise GrammarError("the arguments of a call are an object")
    others = rules.get("additionalProperties", True)
    properties = {
        **said.properties,
        **{n: others for n in said.required if n not in said.properties},
    }
    if said.min_properties > len(set(said.required)):
        raise _not_held("minProperties")
    if said.max_properties is not None and said.max_properties < len(properties):
        raise _not_held("maxProperties")
    shared = {key: whole[key] for key in SHARED if key in whole}
    return Arguments(properties, frozenset(said.required), shared)


def _not_held(name: str) -> GrammarError:
    return GrammarError(f"{name!r} of all arguments together cannot be enforced")


def _object(whole: dict[str, Any]) -> dict[str, Any]:
    """Follow references, and `allOf` of one schema, to the schema that says the properties."""
    rules: Any = whole
    for _ in range(MOST_STEPS):
        if not isinstance(rules, dict):
            break
        said: dict[str, Any] = rules
        inside = said.get("allOf")
        beside = said.keys() & {"properties", "required"}
        if "$ref" in said and not beside:
            rules = referred(said["$ref"], whole)
        elif isinstance(inside, list) and len(cast(list[Any], inside)) == 1 and not beside:
            [rules] = cast(list[Any], inside)
        elif "$ref" in said:
            raise _not_held("$ref")
        else:
            return said
    raise GrammarError("'$ref' of all arguments together leads to no schema of an object")
