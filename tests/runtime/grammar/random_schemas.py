"""Random JSON schemas: bounds up to 100,000, nested, in many scripts, and some that are refused."""

import random
from collections.abc import Callable
from typing import Any

Schema = Any

MOST = 100_000
WORDS = [
    "a", "b", "name", "id", "größe", "名前", "ключ", "a b", 'x"y', "back\\slash", "tab\tkey", "é",
    "😀", "", "$ref", "type", "a/b", "~", "line\nend", "\u2028", "city", "Å", "عربى", "\x7f",
    "नमस्ते",
]  # fmt: skip
LETTERS = "abcxyzABC019_- .,:/é名😀ß\"\\'"
EDGES = [31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 500, 1000, 1023, 1024, 1025]
ATOMS = [
    "a", "b", "7", "x", "-", "_", " ", "é", "名", r"\.", r"\-", r"\/", "@", r"\\", '"', ":", r"\+",
    r"\$", r"\u0041", r"\x41", r"\t", r"\n", "😀", "'", "#", "%", ",", r"\ud83d\ude00", "=",
]  # fmt: skip
SETS = [
    r"\d", r"\w", r"\s", ".", r"\D", r"\S", r"\W", "[a-z]", "[A-Z]", "[0-9]", "[a-zA-Z0-9]",
    "[A-Za-z0-9_-]", "[^a-z]", '[^"]', "[^/]", r"[^,\s]", r"[\w.-]", r"[\d,]", r"[\s\S]", "[é-ü]",
    r"[\u0430-\u044f]", '[ab"]', r"[^\d]", r"[\u4e00-\u9fff]", "[+-]", "[.]", r"[^\\]", "[ -~]",
    r"[\]x]", r"[^\W_]", r"[\W\d]", "[😀-😎]", r"[^\s\w]",
]  # fmt: skip
# What a schema may say besides: most of it is refused, or an annotation.
MORE: list[dict[str, Any]] = [
    {"not": {"type": "null"}}, {"if": {"type": "string"}, "then": {"minLength": 1}},
    {"contains": {"type": "integer"}}, {"uniqueItems": True}, {"dependentRequired": {"a": ["b"]}},
    {"unevaluatedProperties": False}, {"default": 3}, {"examples": [1]}, {"multipleOf": 3},
    {"$comment": "x"}, {"nullable": True}, {"minLength": 3}, {"maxItems": 2}, {"minimum": 2},
    {"pattern": "^a"}, {"enum": ["a", 1, None]}, {"const": "a"}, {"format": "date"},
    {"propertyNames": {"pattern": "^[a-z]{1,200}$"}}, {"minContains": 2},
    {"unevaluatedItems": False},
    {"title": "T", "description": 'some "text"'},
]  # fmt: skip


class RandomSchemas:
    """Makes schemas from one source of chance."""

    def __init__(self, pick: random.Random) -> None:
        self._pick = pick
        self._definitions = 0

    def schema(self) -> Schema:
        """Return a schema of Draft 2020-12."""
        self._definitions = self._pick.choice([0, 0, 0, 1, 2, 3])
        root = self._any(0)
        if self._definitions and isinstance(root, dict):
            names = [f"d{k}" for k in range(self._definitions)]
            return {**root, "$defs": {name: self._any(2) for name in names}}
        return root

    def _bound(self) -> int:
        chance = self._pick.random()
        if chance < 0.35:
            return self._pick.randrange(6)
        if chance < 0.6:
            return self._pick.randrange(40)
        if chance < 0.8:
            return self._pick.choice(EDGES)
        if chance < 0.93:
            return int(10 ** self._pick.uniform(2, 5))
        return self._pick.choice([MOST, MOST - 1, 1 << 16, (1 << 16) - 1, 32768, 50_000])

    def _bounds(self, what: str) -> dict[str, int]:
        low, high = sorted((self._bound(), self._bound()))
        chance = self._pick.random()
        if chance < 0.25:
            return {f"min{what}": low}
        if chance < 0.65:
            return {f"max{what}": high}
        return {f"min{what}": low, f"max{what}": high}

    def _any(self, depth: int) -> Schema:
        kinds: list[Callable[[int], Schema]] = [
            *[self._string] * 6, *[self._integer] * 2, *[self._number] * 2,
            self._plain, self._enum, self._const, self._types, self._free,
        ]  # fmt: skip
        if depth < 4:
            kinds += [*[self._array] * 3, *[self._object] * 6, *[self._choice] * 4]
        if depth == 0:
            kinds += [self._object] * 12
        if self._definitions:
            kinds += [self._reference] * 3
        schema = self._pick.choice(kinds)(depth)
        if isinstance(schema, dict) and self._pick.random() < 0.03:
            return {**schema, **self._pick.choice(MORE)}
        return schema

    def _plain(self, depth: int) -> Schema:
        return {"type": self._pick.choice(["boolean", "null"])}

    def _free(self, depth: int) -> Schema:
        return self._pick.choice([True, {}, {"title": "x"}])

    def _reference(self, depth: int) -> Schema:
        if self._pick.random() < 0.1:
            return {"$ref": "#"}
        return {"$ref": f"#/$defs/d{self._pick.randrange(self._definitions)}"}

    def _choice(self, depth: int) -> Schema:
        name = self._pick.choice(["anyOf", "anyOf", "anyOf", "oneOf", "allOf"])
        count = self._pick.randrange(1, 2 if name == "allOf" else 4)
        return {name: [self._any(depth + 1) for _ in range(count)]}

    def _word(self) -> str:
        if self._pick.random() < 0.6:
            return self._pick.choice(WORDS)
        return "".join(self._pick.choices(LETTERS, k=self._pick.randrange(9)))

    def _value(self, depth: int = 0) -> Any:
        numbers = [0, 1, -1, 7, 10**6, -(2**40), 2**53, 0.5, -1.25, 1e10, 1.0, 3.14159, 1e-7, 1e300]
        match self._pick.randrange(8 if depth < 2 else 6):
            case 0 | 1 | 2:
                return self._word()
            case 3 | 4:
                return self._pick.choice(numbers)
            case 5:
                return self._pick.choice([True, False, None])
            case 6:
                return [self._value(depth + 1) for _ in range(self._pick.randrange(4))]
            case _:
                return {
                    self._word(): self._value(depth + 1) for _ in range(self._pick.randrange(4))
                }

    def _enum(self, depth: int) -> Schema:
        count = self._pick.choice([1, 2, 3, 5, 10, 50, 50 if self._pick.random() < 0.9 else 2000])
        if self._pick.random() < 0.5:
            return {"enum": [self._value() for _ in range(min(count, 50))]}
        words = [self._word() + str(self._pick.randrange(1000)) for _ in range(count)]
        typed = {"type": "string"} if self._pick.random() < 0.5 else {}
        return {"enum": list(dict.fromkeys(words)), **typed}

    def _const(self, depth: int) -> Schema:
        return {"const": self._value()}

    def _types(self, depth: int) -> Schema:
        names = ["string", "integer", "number", "boolean", "null", "array", "object"]
        types = self._pick.sample(names, self._pick.randrange(1, 4))
        more: dict[str, Any] = {}
        if self._pick.random() < 0.4:
            more |= self._bounds("Length")
        if self._pick.random() < 0.3:
            more["minimum"] = self._pick.randrange(-5, 10)
        return {"type": types, **more}

    def _string(self, depth: int) -> Schema:
        schema: dict[str, Any] = {"type": "string"} if self._pick.random() < 0.96 else {}
        chance = self._pick.random()
        if chance < 0.15:
            return schema
        if chance < 0.55:
            return schema | self._bounds("Length")
        if chance < 0.92:
            schema["pattern"] = self.pattern()
            return schema | (self._bounds("Length") if self._pick.random() < 0.1 else {})
        names = ["date", "date-time", "uuid", "email", "ipv4", "uri", "custom", "hostname", "time"]
        return schema | {"format": self._pick.choice(names)}

    def pattern(self) -> str:
        """Return a pattern, anchored mostly."""
        pattern, chance = self._alternatives(0), self._pick.random()
        if chance < 0.75:
            return f"^({pattern})$" if "|" in pattern else f"^{pattern}$"
        return {0: f"^{pattern}", 1: f"{pattern}$", 2: pattern}[int((chance - 0.75) * 12)]

    def _alternatives(self, depth: int) -> str:
        count = 1 if self._pick.random() < 0.8 else self._pick.randrange(2, 4)
        pieces = [self._pick.randrange(1, 5) for _ in range(count)]
        return "|".join("".join(self._piece(depth) for _ in range(n)) for n in pieces)

    def _piece(self, depth: int) -> str:
        atom, chance = self._atom(depth), self._pick.random()
        if chance < 0.5:
            return atom
        if chance < 0.76:
            return atom + self._pick.choice("?*+")
        low, high = sorted((self._bound(), self._bound()))
        if depth:
            low, high = sorted((low % 200, high % 300))
        counts = [f"{{{high}}}", f"{{{low},}}", f"{{{low},{high}}}", f"{{0,{high}}}"]
        return atom + self._pick.choice(counts)

    def _atom(self, depth: int) -> str:
        chance = self._pick.random()
        if chance < 0.35:
            return self._pick.choice(ATOMS)
        if chance < 0.85 or depth >= 2:
            return self._pick.choice(SETS)
        return f"{self._pick.choice(['(', '(?:'])}{self._alternatives(depth + 1)})"

    def _ends(self, number: Callable[[], float]) -> dict[str, Any]:
        low, high = sorted((number(), number()))
        chance = self._pick.random()
        lower = {self._pick.choice(["minimum", "exclusiveMinimum"]): low}
        upper = {self._pick.choice(["maximum", "exclusiveMaximum"]): high}
        if chance < 0.35:
            return {}
        return lower if chance < 0.5 else upper if chance < 0.65 else lower | upper

    def _integer(self, depth: int) -> Schema:
        pick = self._pick

        def number() -> int:
            large = int(10 ** pick.uniform(0, 17)) * pick.choice([1, -1])
            return pick.choice([pick.randrange(-20, 21), pick.randrange(-MOST, MOST), large, 0])

        schema: dict[str, Any] = {"type": "integer", **self._ends(number)}
        if pick.random() < 0.12:
            schema["multipleOf"] = pick.choice([1, 2, 3, 5, 7, 10, 60, 100])
        if pick.random() < 0.05 and "minimum" in schema:
            schema["minimum"] += 0.5
        return schema

    def _number(self, depth: int) -> Schema:
        pick = self._pick

        def number() -> float:
            any_size = 10 ** pick.uniform(-8, 12) * pick.choice([1, -1])
            rounded = round(pick.uniform(-10, 10), pick.randrange(6))
            return pick.choice(
                [pick.randrange(-20, 21), rounded, round(pick.uniform(-1, 1), 8), any_size, 0]
            )

        schema: dict[str, Any] = {"type": "number", **self._ends(number)}
        if pick.random() < 0.05:
            schema["multipleOf"] = pick.choice([0.5, 0.01, 3])
        return schema

    def _array(self, depth: int) -> Schema:
        schema: dict[str, Any] = {"type": "array"}
        if self._pick.random() < 0.85:
            schema["items"] = self._any(depth + 1)
        if self._pick.random() < 0.15:
            count = self._pick.randrange(1, 4)
            schema["prefixItems"] = [self._any(depth + 2) for _ in range(count)]
            if self._pick.random() < 0.5:
                schema["items"] = False
        return schema | (self._bounds("Items") if self._pick.random() < 0.55 else {})

    def _object(self, depth: int) -> Schema:
        pick = self._pick
        count = pick.choice([0, 1, 1, 2, 3, 4, 6, 6 if pick.random() < 0.9 else 40])
        names = list(dict.fromkeys(self._word() for _ in range(count)))
        schema: dict[str, Any] = {"type": "object"}
        if names or pick.random() < 0.5:
            schema["properties"] = {name: self._any(depth + 1) for name in names}
        chance = pick.random()
        if names and chance < 0.8:
            schema["required"] = names if chance < 0.5 else pick.sample(names, len(names) // 2)
        if pick.random() < 0.03:
            schema["required"] = [*schema.get("required", []), "extra"]
        chance = pick.random()
        if chance < 0.6:
            schema["additionalProperties"] = chance > 0.5
        elif chance < 0.75:
            schema["additionalProperties"] = self._any(depth + 2)
        if pick.random() < 0.12:
            schema |= self._bounds("Properties")
        if pick.random() < 0.08:
            schema["patternProperties"] = {self.pattern(): self._any(depth + 2)}
        if pick.random() < 0.04:
            names_of = [{"maxLength": 150}, {"enum": ["a", "b"]}, {"pattern": "^[a-z]{1,200}$"}]
            schema["propertyNames"] = pick.choice(names_of)
        return schema
