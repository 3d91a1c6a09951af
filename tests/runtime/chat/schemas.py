"""Schemas of arguments from a seed, and values that may fit them."""

from random import Random
from typing import Any

Json = dict[str, Any]

_STRINGS = ("", "a", "12345", "-7", "5.0", "1.5", "true", "null", "True", "[1]", '{"a": 1}', '"a"',
            "a b\n", "ü\\", "NaN", "<", "1e400")  # fmt: skip
_NUMBERS = (0, 1, -7, 5, 12345, 1.5, 5.0, -0.25, 10**20)
_KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")
_KEYS = ("a", "b", "c")


def random_root(random: Random) -> Json:
    """Return a schema with definitions."""
    root = random_schema(random)
    root["$defs"] = {"d": random_schema(random, depth=2), "e": random_schema(random, depth=2)}
    return root


def random_schema(random: Random, depth: int = 0) -> Json:
    """Return a schema; its references lead to the definitions of `random_root`."""
    match random.randint(0, 9 if depth < 2 else 6):
        case 0 | 1 | 2:
            return _of_kind(random, random.choice(_KINDS), depth)
        case 3:
            return {"type": random.sample(_KINDS, random.randint(1, 3))}
        case 4:
            return {"enum": random.sample([*_STRINGS, *_NUMBERS, True, False, None], 4)}
        case 5:
            return {"const": random.choice([*_STRINGS, *_NUMBERS, True, None])}
        case 6:
            return random.choice([{}, {"title": "t"}])
        case 7:
            return {"$ref": f"#/$defs/{random.choice('de')}"}
        case 8:
            return {"allOf": [random_schema(random, depth + 1) for _ in range(2)]}
        case _:
            return {"anyOf": [random_schema(random, depth + 1) for _ in range(2)]}


def _of_kind(random: Random, kind: str, depth: int) -> Json:
    schema: Json = {"type": kind}
    bounded = random.random() < 0.3
    match kind:
        case "string" if bounded:
            schema[random.choice(["minLength", "maxLength"])] = random.randint(0, 4)
        case "integer" | "number" if bounded:
            names = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
            schema[random.choice(names)] = random.choice([0, 5, 1.5])
        case "array" if depth < 2:
            schema["items"] = random_schema(random, depth + 1)
            if random.random() < 0.2:
                schema["prefixItems"] = [random_schema(random, depth + 1)]
        case "object" if depth < 2:
            keys = random.sample(_KEYS, random.randint(0, 3))
            schema["properties"] = {key: random_schema(random, depth + 1) for key in keys}
            if random.random() < 0.5:
                schema["required"] = random.sample(_KEYS, 1)
            if random.random() < 0.5:
                schema["additionalProperties"] = random.choice([False, {"type": "integer"}])
        case _:
            pass
    return schema


def near_value(random: Random, depth: int = 0) -> Any:
    """Return a value that such a schema may allow."""
    match random.randint(0, 6 if depth < 2 else 4):
        case 0 | 1:
            return random.choice(_STRINGS)
        case 2 | 3:
            return random.choice(_NUMBERS)
        case 4:
            return random.choice([True, False, None])
        case 5:
            return [near_value(random, depth + 1) for _ in range(random.randint(0, 2))]
        case _:
            keys = random.sample(_KEYS, random.randint(0, 2))
            return {key: near_value(random, depth + 1) for key in keys}
