"""A JSON schema as rules of a grammar, one rule for each part of the schema.

    {"type": "array", "items": {"type": "integer"}, "maxItems": 2000}
    ->  "[", an integer, a comma and an integer 1,999 times at most, "]"

Properties are written in the order of the schema. Where it does not say what other properties, or
items behind those of `prefixItems`, may be, there are none.
"""

from typing import Any, cast

from runtime.errors import GrammarError
from runtime.grammar.choices import CHOICES
from runtime.grammar.ebnf import Rules, either, literal, sequence
from runtime.grammar.formats import FORMATS, REFUSED_FORMATS
from runtime.grammar.json_rules import JsonRules
from runtime.grammar.literals import named_values, string_spelling
from runtime.grammar.numbers import (
    Bound,
    Range,
    any_integer,
    any_number,
    decimal_of,
    integer_in,
    number_in,
)
from runtime.grammar.object_rules import Counts, Property, object_rule
from runtime.grammar.patterns import Length, string_of_length, string_of_pattern
from runtime.grammar.repetition import repeat
from runtime.grammar.schema import PreparedSchema
from runtime.grammar.values import said_types
from runtime.schema_reference import MOST_STEPS, referred


def schema_text(schema: object) -> str:
    """Return the grammar of a decoded schema, which is rewritten.

    Raises GrammarError, with a path, for what cannot be enforced.
    """
    return _SchemaRules(PreparedSchema(schema)).text()


class _SchemaRules:
    """Writes the rules of a schema; parts wait in line instead of being written inside others."""

    def __init__(self, schema: PreparedSchema) -> None:
        self._schema = schema
        self._rules = Rules()
        self._json = JsonRules(self._rules)
        self._names: dict[int, str] = {}
        self._waiting: list[dict[str, Any]] = []

    def text(self) -> str:
        """Return all rules. Raises GrammarError."""
        root = self._refer(self._schema.root)
        while self._waiting:
            part = self._waiting.pop()
            try:
                body = self._body(part)
            except GrammarError as fault:
                raise GrammarError(f"{self._schema.path(part)}: {fault.message}") from None
            except RecursionError:
                reason = "a name or a value is too long, or nested too deeply"
                raise GrammarError(f"{self._schema.path(part)}: {reason}") from None
            self._rules.define(self._names[id(part)], body)
        return self._rules.text(root)

    def _refer(self, part: object) -> str:
        """Return the name of the rule of a part."""
        if not isinstance(part, dict):
            return self._json.value
        rules = cast(dict[str, Any], part)
        if id(rules) not in self._names:
            self._names[id(rules)] = self._rules.reserve("part")
            self._waiting.append(rules)
        return self._names[id(rules)]

    def _body(self, rules: dict[str, Any]) -> str:
        if "$ref" in rules:
            return self._refer(referred(rules["$ref"], self._schema.root))
        for name in ("anyOf", "allOf"):
            if name in rules:
                parts = [part for part in rules[name] if part is not False]
                return either(self._refer(part) for part in parts)
        if "enum" in rules or "const" in rules:
            values = rules["enum"] if "enum" in rules else [rules["const"]]
            return named_values(self._rules, values, self._json.blanks)
        types = said_types(rules)
        if "number" in types and "integer" in types:
            types.remove("integer")
        return either(self._of_type(kind, rules) for kind in types) if types else self._json.value

    def _of_type(self, kind: str, rules: dict[str, Any]) -> str:
        match kind:
            case "string":
                return self._string(rules)
            case "integer" | "number":
                return self._number(kind, rules)
            case "boolean":
                return '("true" | "false")'
            case "null":
                return '"null"'
            case "array":
                return self._array(rules)
            case _:
                return self._object(rules)

    def _string(self, rules: dict[str, Any]) -> str:
        length = Length(rules.get("minLength", 0), rules.get("maxLength"))
        name = rules.get("format")
        if name in REFUSED_FORMATS:
            raise GrammarError(f"the format {name!r} cannot be enforced")
        form = FORMATS.get(name) if isinstance(name, str) else None
        if form is not None:
            if "pattern" in rules:
                raise GrammarError(
                    "the schema keywords 'pattern' and 'format' cannot be enforced together"
                )
            least, most = length
            if least > form.least or (most is not None and (form.most is None or most < form.most)):
                raise GrammarError(
                    f"bounds of length cannot be enforced beside the format {name!r}"
                )
            return self._rules.add("format", string_of_pattern(self._rules, form.pattern, Length()))
        if "pattern" in rules:
            try:
                return string_of_pattern(self._rules, rules["pattern"], length)
            except GrammarError as fault:
                reason = f"the schema keyword 'pattern' cannot be enforced: {fault.message}"
                raise GrammarError(reason) from None
        if length == Length():
            return self._json.string
        return string_of_length(self._rules, length)

    def _number(self, kind: str, rules: dict[str, Any]) -> str:
        span, step = _range(rules), rules.get("multipleOf")
        if step is not None and not float(step).is_integer():
            raise GrammarError("the schema keyword 'multipleOf' must be an integer to be enforced")
        if kind == "integer" or step is not None:
            if span == Range() and step in (None, 1):
                return any_integer(self._rules)
            return integer_in(self._rules, span, None if step is None else int(step))
        return any_number(self._rules) if span == Range() else number_in(self._rules, span)

    def _array(self, rules: dict[str, Any]) -> str:
        first, others = _items(rules)
        least, most = rules.get("minItems", 0), rules.get("maxItems")
        if False in first:
            first, others = first[: first.index(False)], False
        if others is False and (most is None or most > len(first)):
            most = len(first)
        if most is not None and least > most:
            raise GrammarError("the schema keyword 'minItems' is above the number of items")
        first = first[:most]
        comma, blanks = self._json.comma, self._json.blanks
        parts = [self._refer(part) for part in first]
        inner = ""
        if others is not False and (most is None or most > len(parts)):
            item = self._refer(others)
            written = max(1, len(parts))
            more = repeat(
                self._rules,
                (f"{comma} {item}",),
                max(0, least - written),
                None if most is None else most - written,
            )
            inner = more if parts else sequence((item, more))
        for k in range(len(parts) - 1, -1, -1):
            if k + 1 < len(parts) or inner:
                optional = k + 1 < len(parts) and k + 1 >= least
                inner = f'("" | {inner})' if optional else inner
            inner = sequence((comma if k else '""', parts[k], inner or '""'))
            inner = self._rules.add("items", inner)
        if not inner:
            return f'"[" {blanks} "]"'
        filled = f'{inner} {blanks} "]"'
        return f'"[" {blanks} {filled if least else either((filled, self._closed))}'

    _closed = '"]"'

    def _object(self, rules: dict[str, Any]) -> str:
        properties = cast(dict[str, Any], rules.get("properties", {}))
        required = cast(list[str], rules.get("required", []))
        named = [
            Property(self._pair(self._key(key), part), key in required)
            for key, part in properties.items()
            if part is not False
        ]
        counts = Counts(rules.get("minProperties", 0), rules.get("maxProperties"))
        return object_rule(self._rules, self._json, named, self._others(rules), counts)

    def _key(self, key: str) -> str:
        return literal(f'"{string_spelling(key)}"')

    def _pair(self, key: str, part: object) -> str:
        return f"{key} {self._json.colon} {self._refer(part)}"

    def _others(self, rules: dict[str, Any]) -> list[str]:
        """Return the expressions of pairs whose keys are not named."""
        patterns = cast(dict[str, Any], rules.get("patternProperties", {}))
        pairs = [
            self._pair(self._rules.add("key", self._pattern_key(pattern)), part)
            for pattern, part in patterns.items()
            if part is not False
        ]
        closed = bool(rules.keys() & {"properties", "patternProperties"})
        others = rules.get("additionalProperties", rules.get("unevaluatedProperties", not closed))
        if others is not False:
            key = self._other_key(rules)
            if key is not None:
                pairs.append(self._pair(key, others))
        return pairs

    def _other_key(self, rules: dict[str, Any]) -> str | None:
        """Return the expression of keys that are not named, None if there are none."""
        names = rules.get("propertyNames", True)
        if not isinstance(names, dict):
            return self._json.other_key(list(rules.get("properties", {}))) if names else None
        said = cast(dict[str, Any], names)
        for _ in range(MOST_STEPS):
            target = referred(said["$ref"], self._schema.root) if "$ref" in said else None
            said = cast(dict[str, Any], target) if isinstance(target, dict) else said
        if said.keys() & set(CHOICES):
            raise GrammarError("a choice in the schema keyword 'propertyNames' cannot be enforced")
        values = said.get("enum", [said["const"]] if "const" in said else None)
        if values is None:
            return self._string(said)
        texts = [value for value in cast(list[object], values) if isinstance(value, str)]
        return named_values(self._rules, texts, self._json.blanks) if texts else None

    def _pattern_key(self, pattern: str) -> str:
        try:
            return string_of_pattern(self._rules, pattern, Length())
        except GrammarError as fault:
            reason = f"the schema keyword 'patternProperties' cannot be enforced: {fault.message}"
            raise GrammarError(reason) from None


def _items(rules: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return the schemas of the first items, and that of all others."""
    items = rules.get("items")
    if isinstance(items, list):
        return cast(list[Any], items), rules.get("additionalItems", False)
    first = cast(list[Any], rules.get("prefixItems", []))
    return first, not first if items is None else items


def _range(rules: dict[str, Any]) -> Range:
    """Return the numbers between the bounds that a schema names."""
    lows = [Bound(decimal_of(rules[n]), n == "minimum") for n in _LOWER if n in rules]
    highs = [Bound(decimal_of(rules[n]), n == "maximum") for n in _UPPER if n in rules]
    # Of two bounds at one value the stricter one counts.
    low = max(lows, key=lambda bound: (bound.value, not bound.inside), default=None)
    high = min(highs, key=lambda bound: (bound.value, bound.inside), default=None)
    return Range(low, high)


_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")
