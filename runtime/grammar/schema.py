"""JSON Schema that a grammar can hold an output to, and what of it none can.

A keyword that would be dropped in silence makes outputs that do not validate: such a schema is
refused, with the path of the keyword, or said in another way. Runs in the grammar's process, where
a schema of any depth harms nobody else.
"""

from collections.abc import Iterator
from typing import Any, cast

from runtime.errors import GrammarError
from runtime.grammar.choices import (
    CHOICES,
    check_choice,
    implied_types,
    is_bare,
    shares_no_value,
)
from runtime.grammar.finite import without_end
from runtime.grammar.keys import prepare_keys
from runtime.grammar.keyword_forms import check_forms
from runtime.grammar.values import keep_named
from runtime.schema_reference import is_circle, is_missing, referred

_NOT_ENFORCED = (
    "$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired",
    "dependentSchemas", "else", "if", "not", "maxContains", "minContains", "then",
    "unevaluatedItems",
)  # fmt: skip
_SCHEMAS = (
    "additionalProperties", "items", "propertyNames", "additionalItems", "unevaluatedProperties",
)  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPPINGS = ("properties", "patternProperties", "$defs", "definitions")
# Each level is a rule that the compiler walks down by recursion.
_MOST_DEPTH = 300
# Of all objects together: the compiler's time grows with the square of their number.
_MOST_PROPERTIES = 4096


class PreparedSchema:
    """A schema of which all can be enforced, and where its parts stand.

    root  the schema itself
    """

    def __init__(self, schema: object) -> None:
        """Rewrite a decoded schema, in place. Raises GrammarError for the first keyword that
        cannot be enforced, with its path.
        """
        self.root = schema
        self._paths: dict[int, str] = {}
        if not isinstance(schema, bool | dict):
            raise GrammarError("a JSON schema is an object or a boolean")
        if schema is False:
            raise GrammarError("#: the schema false cannot accept any value")
        self._check_choices()
        parts: list[dict[str, Any]] = []
        for rules, path in _parts(self.root):
            with _at(path):
                self._prepare(rules)
            self._paths[id(rules)] = path
            parts.append(rules)
        endless = without_end(parts, self.root)
        if endless is not None:
            raise GrammarError(
                f"{self.path(endless)}: no value fits: the schema needs itself, or what the schema "
                "false forbids"
            )

    def parts(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield the schema and those inside or referred to, each with its path."""
        return _parts(self.root)

    def path(self, rules: dict[str, Any]) -> str:
        """Return the path of a part."""
        return self._paths.get(id(rules), "#")

    def _check_choices(self) -> None:
        """Check forms, references and choices; then say `oneOf` as `anyOf` where it can be.

        Not before all are checked: references may lead through `oneOf`.
        """
        told_apart: list[dict[str, Any]] = []
        properties = 0
        for rules, path in _parts(self.root):
            with _at(path):
                check_forms(rules)
                _check_references(rules, self.root)
                check_choice(rules, self.root)
                _check_identifier(rules, path)
            properties += len(rules.get("properties", {}))
            if properties > _MOST_PROPERTIES:
                text = f"the objects of a schema have at most {_MOST_PROPERTIES} properties in all"
                raise GrammarError(text)
            if shares_no_value(rules, self.root):
                told_apart.append(rules)
        for rules in told_apart:
            rules["anyOf"] = rules.pop("oneOf")

    def _prepare(self, rules: dict[str, Any]) -> None:
        if "$ref" in rules and is_missing(rules["$ref"], self.root):
            # What is still `oneOf` is refused.
            rules["$ref"] = rules["$ref"].replace("/oneOf/", "/anyOf/")
            _check_references(rules, self.root)
        for name in _NOT_ENFORCED:
            if name in rules:
                raise GrammarError(f"the schema keyword {name!r} cannot be enforced")
        if rules.get("uniqueItems"):
            raise GrammarError("the schema keyword 'uniqueItems' cannot be enforced")
        if len(rules.get("allOf", [0])) > 1:
            raise GrammarError(
                "the schema keyword 'allOf' with several schemas cannot be enforced: say all of "
                "them in one"
            )
        if "oneOf" in rules:
            raise GrammarError(
                "the schema keyword 'oneOf' cannot be enforced where a value may fit two of its "
                "schemas: say 'anyOf', or tell them apart by type or by the value of a property"
            )
        keep_named(rules)
        prepare_keys(rules)
        _say_type(rules)


class _at:
    """Puts the path of a part of the schema in front of what is wrong with it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, GrammarError):
            raise GrammarError(f"{self._path}: {fault.message}") from None


def _check_references(rules: dict[str, Any], root: object) -> None:
    if "$ref" in rules and is_missing(rules["$ref"], root):
        raise GrammarError(f"Cannot find the schema that '$ref' {rules['$ref']!r} refers to")
    if is_circle(rules, root):
        name = next(name for name in CHOICES if name in rules)
        raise GrammarError(f"the schema keyword {name!r} leads back to itself alone")


def _check_identifier(rules: dict[str, Any], path: str) -> None:
    """Refuse a part that has an address of its own, from which references inside it begin."""
    address = rules.get("$id")
    if path == "#" or not isinstance(address, str) or address.startswith("#"):
        return
    if any("$ref" in inner for inner, _ in _parts(rules)):
        raise GrammarError("the schema keyword '$id' cannot be enforced around references")


def _say_type(rules: dict[str, Any]) -> None:
    """Name the types that keywords speak of where no type is named; a stricter schema."""
    choice = next((name for name in CHOICES if name in rules), None)
    if choice is not None:
        if "type" in rules and isinstance(rules[choice], list):
            for part in cast(list[dict[str, Any]], rules[choice]):
                if is_bare(part):
                    part["type"] = rules["type"]
    elif not rules.keys() & {"enum", "const", "type"} and (types := implied_types(rules)):
        rules["type"] = types[0] if len(types) == 1 else types


def _parts(schema: object) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield a schema and those inside or referred to, each once, with its path; what is inside
    one, or referred to there, when the next is asked for.
    """
    waiting: list[tuple[object, str, int]] = [(schema, "#", 0)]
    seen: dict[int, object] = {}  # by id, kept: what is let go of gives its id away
    while waiting:
        part, path, depth = waiting.pop()
        if isinstance(part, dict) and id(cast(object, part)) not in seen:
            if depth > _MOST_DEPTH:
                raise GrammarError(
                    f"{path[:200]}: the schema is nested more than {_MOST_DEPTH} deep"
                )
            rules = cast(dict[str, Any], part)
            seen[id(rules)] = rules
            yield rules, path
            inner = [(each, f"{path}/{name}", depth + 1) for each, name in _inner(rules)]
            waiting += reversed(inner)
            reference = rules.get("$ref")
            if isinstance(reference, str):
                waiting.append((referred(reference, schema), reference, 0))


def _inner(rules: dict[str, Any]) -> Iterator[tuple[object, str]]:
    for name in _SCHEMAS:
        yield rules.get(name), name
    for name in _LISTS:
        if isinstance(rules.get(name), list):
            for k, part in enumerate(cast(list[object], rules[name])):
                yield part, f"{name}/{k}"
    for name in _MAPPINGS:
        if isinstance(rules.get(name), dict):
            for key, part in cast(dict[str, object], rules[name]).items():
                yield part, f"{name}/{key.replace('~', '~0').replace('/', '~1')}"
