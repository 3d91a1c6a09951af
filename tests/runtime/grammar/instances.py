"""Values that fit a schema, and values close by, in the order that a grammar has them in."""

import random
from typing import Any, cast

from runtime.grammar.ebnf import Ranges
from runtime.grammar.regex_parser import parse
from runtime.grammar.regex_tree import Characters, Choice, Node, Repeat, Sequence
from runtime.schema_reference import referred

_MOST_CHARACTERS = 120_000
_LETTERS = "abcdefghij XYZ0123456789.,:é名😀"


class NoInstance(Exception):
    """None was found in the time given; there may be one."""


class Instances:
    """Makes values that fit a schema; what it makes is to be validated."""

    def __init__(self, schema: Any, pick: random.Random) -> None:
        self._root = schema
        self._pick = pick
        self._left = _MOST_CHARACTERS

    def make(self) -> Any:
        """Return a value. Raises NoInstance."""
        self._left = _MOST_CHARACTERS
        return self._of(self._root, 0)

    def near(self, value: Any) -> Any:
        """Return a value that differs in one place."""
        if isinstance(value, dict) and value and self._pick.random() < 0.8:
            named = cast(dict[str, Any], value)
            key = self._pick.choice(list(named))
            if self._pick.random() < 0.2:
                return {name: part for name, part in named.items() if name != key}
            return {**named, key: self.near(named[key])}
        if isinstance(value, list) and value:
            items = cast(list[Any], value)
            if self._pick.random() < 0.5:
                return items[:-1] if self._pick.random() < 0.5 else [*items, items[-1]]
            at = self._pick.randrange(len(items))
            return [*items[:at], self.near(items[at]), *items[at + 1 :]]
        match value:
            case str():
                return value[:-1] if self._pick.random() < 0.5 else value + "a"
            case bool() | None:
                return self._pick.choice([0, "", None, [], {}])
            case int():
                return value + self._pick.choice([1, -1, 0.5])
            case float():
                return round(value + self._pick.choice([0.25, -0.25, 1, -1]), 6)
            case _:
                return self._pick.choice([0, "", None, [1], {"zz": 1}])

    def _of(self, schema: Any, depth: int) -> Any:
        if depth > 12 or self._left < 0:
            raise NoInstance
        if not isinstance(schema, dict):
            if schema is False:
                raise NoInstance
            return self._pick.choice([0, 12.5, "text", None, True, [1, "a"], {"k": [None]}])
        rules = cast(dict[str, Any], schema)
        if "$ref" in rules:
            return self._of(referred(rules["$ref"], self._root), depth + 1)
        for name in ("anyOf", "oneOf", "allOf"):
            if name in rules:
                return self._of(self._pick.choice(rules[name]), depth + 1)
        if "enum" in rules or "const" in rules:
            return self._pick.choice(rules["enum"]) if "enum" in rules else rules["const"]
        kind = self._kind(rules)
        match kind:
            case "string":
                return self._string(rules)
            case "integer" | "number":
                return self._number(rules, kind)
            case "array":
                return self._array(rules, depth)
            case "object":
                return self._object(rules, depth)
            case _:
                return None if kind == "null" else self._pick.random() < 0.5

    def _kind(self, rules: dict[str, Any]) -> str:
        types: Any = rules.get("type")
        if types is not None:
            return self._pick.choice(types) if isinstance(types, list) else types
        if rules.keys() & {"minLength", "maxLength", "pattern", "format"}:
            return "string"
        return "array" if rules.keys() & {"minItems", "maxItems", "items"} else "null"

    def _count(self, least: int, most: int | None, usual: int) -> int:
        """Return a count: one of the ends, or one between them."""
        upper = least + usual if most is None else most
        near = min(upper, least + usual)
        return self._pick.choice([least, upper, self._pick.randint(least, near)])

    def _string(self, rules: dict[str, Any]) -> str:
        if "format" in rules:
            raise NoInstance
        if "pattern" in rules:
            return self._matching(parse(rules["pattern"], spelt=True))
        count = self._count(rules.get("minLength", 0), rules.get("maxLength"), 30)
        self._left -= count
        if self._left < 0:
            raise NoInstance
        few = "".join(self._pick.choices(_LETTERS, k=min(count, 60)))
        return few + "x" * (count - len(few))

    def _matching(self, node: Node) -> str:
        self._left -= 1
        if self._left < 0:
            raise NoInstance
        match node:
            case Characters(ranges):
                return self._character(ranges)
            case Sequence(parts):
                return "".join(map(self._matching, parts))
            case Choice(parts):
                return self._matching(self._pick.choice(parts))
            case Repeat(part, least, most):
                count = self._count(least, most, 5)
                if isinstance(part, Characters):
                    self._left -= count
                    if self._left < 0:
                        raise NoInstance
                    few = "".join(self._character(part.ranges) for _ in range(min(count, 40)))
                    return few + self._character(part.ranges) * (count - len(few))
                return "".join(self._matching(part) for _ in range(count))

    def _character(self, ranges: Ranges) -> str:
        low, high = self._pick.choice(ranges)
        code = self._pick.choice([low, high, self._pick.randint(low, high)])
        if 0xD800 <= code < 0xE000:
            raise NoInstance  # Half of a character.
        return chr(code)

    def _number(self, rules: dict[str, Any], kind: str) -> float:
        low = max((rules[n] for n in ("minimum", "exclusiveMinimum") if n in rules), default=None)
        high = min((rules[n] for n in ("maximum", "exclusiveMaximum") if n in rules), default=None)
        first: float = low if low is not None else (high if high is not None else 0) - 100
        last: float = high if high is not None else first + 200
        value = self._pick.choice([first, last, self._pick.uniform(first, last)])
        # Multiples are written as integers.
        if kind == "integer" or "multipleOf" in rules or self._pick.random() < 0.3:
            step = rules.get("multipleOf", 1)
            return int(value // step * step) + self._pick.choice([0, 1, -1]) * int(step)
        if abs(value) > 10**9:
            raise NoInstance
        return round(value, self._pick.randrange(1, 5))

    def _array(self, rules: dict[str, Any], depth: int) -> list[Any]:
        first: list[Any] = rules.get("prefixItems", [])
        others = rules.get("items", not first)
        least, most = rules.get("minItems", 0), rules.get("maxItems")
        if others is False:
            most = min(len(first), len(first) if most is None else most)
        if most is not None and least > most:
            raise NoInstance
        count = self._count(least, most, 4)
        parts = [*first, *[others] * (min(count, 40) - len(first))][:count]
        few = [self._of(part, depth + 1) for part in parts]
        if count == len(few):
            return few
        self._left -= (count - len(few)) * len(str(few[-1]))
        if self._left < 0:
            raise NoInstance
        return few + [few[-1]] * (count - len(few))

    def _object(self, rules: dict[str, Any], depth: int) -> dict[str, Any]:
        properties: dict[str, Any] = rules.get("properties", {})
        required: list[str] = rules.get("required", [])
        made = {
            name: self._of(part, depth + 1)
            for name, part in properties.items()
            if part is not False and (name in required or self._pick.random() < 0.5)
        }
        others = rules.get("additionalProperties", False)
        if others is not False and "patternProperties" not in rules:
            for name in ("zz", "größer", 'q"'):
                if name not in properties and self._pick.random() < 0.3:
                    made[name] = self._of(others, depth + 1)
        return made
