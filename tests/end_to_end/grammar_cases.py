"""Schemas and patterns that outputs of random weights are held to, and how an output is judged."""

import json
import re
from typing import Any

import jsonschema

from tests.testing.stand_in.tokenizer import train_tokenizer

Json = dict[str, Any]

# Blanks between JSON's parts are allowed; without a word against them the stand-in writes many.
NO_BLANKS = {
    str(token_id): -100.0 for text, token_id in train_tokenizer().get_vocab().items()
    if re.fullmatch("[ĠĊĉč]+", text)
}  # fmt: skip


def _object(**properties: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_DIGIT: Json = {"type": "integer", "minimum": 0, "maximum": 9}
_WORD: Json = {"type": "string", "minLength": 1, "maxLength": 6}
# Each level ends in one of two ways, so that chance ends it soon.
_LIST: Json = {
    "$defs": {
        "node": _object(value=_DIGIT, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
    },
    "$ref": "#/$defs/node",
}
_TREE: Json = {
    "$defs": {
        "tree": {
            "anyOf": [
                {"type": "null"},
                {"type": "boolean"},
                {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
            ]
        }
    },
    "$ref": "#/$defs/tree",
}

SCHEMAS: dict[str, Json] = {
    "flat": _object(name=_WORD, page=_DIGIT, open={"type": "boolean"}),
    "nested": _object(a=_object(b=_object(c=_object(d=_DIGIT), e=_WORD), f={"type": "null"})),
    "enum": {"enum": ["red", "grün", "青", 1, 2.5, None, True, {"a": [1]}]},
    "const": _object(kind={"const": "page/ß"}, of={"const": 7}),
    "integer range": _object(x={"type": "integer", "minimum": -17, "maximum": 342}),
    "number range": _object(x={"type": "number", "minimum": -2, "exclusiveMaximum": 3}),
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 99},
    "unicode": _object(**{"ключ": {"enum": ["значение", "日本", "🙂"]}, "é\u00a0": _WORD}),
    "string pattern": _object(id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"}),
    "string pattern in parts": _object(id={"type": "string", "pattern": '^a(-"?[0-9]{1,4})?$'}),
    "string format": _object(
        day={"type": "string", "format": "date"},
        time={"type": "string", "format": "time"},
        address={"type": "string", "format": "ipv4"},
        mail={"type": "string", "format": "email"},
    ),
    "array": {"type": "array", "items": _DIGIT, "minItems": 2, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [_DIGIT, _WORD, {"type": "null"}],
        "items": False,
        "minItems": 3,
    },
    "long string": _object(text={"type": "string", "minLength": 130, "maxLength": 300}),
    "long pattern": _object(id={"type": "string", "pattern": "^x?[a-zé]{129,260}$"}),
    "many items": {"type": "array", "items": _DIGIT, "maxItems": 500},
    "optional": _object(a=_DIGIT, b=_WORD) | {"required": ["b"]},
    "choice": {"anyOf": [_object(a=_DIGIT), {"type": "array", "items": _WORD, "maxItems": 2}]},
    "types": _object(x={"type": ["integer", "null", "boolean"], "minimum": 3, "maximum": 8}),
    "recursive list": _LIST,
    "recursive tree": _TREE,
}
REGEXES: dict[str, str] = {
    "long": r"[a-z]{129,300}!",
    "phone": r"\+[0-9]{2} [0-9]{3}-[0-9]{4}",
    "words": r"(yes|no|vielleicht)( and (yes|no)){0,2}",
    "letters": r"[à-ü]{3}[^a-z\s]{2}",
    "address": r"[a-z]{2,6}@[a-z]{2,5}\.(com|org)",
}


def params(name: str) -> Json:
    """Return the sampling parameter that asks for a case."""
    return {"json_schema": SCHEMAS[name]} if name in SCHEMAS else {"regex": REGEXES[name]}


def check(name: str, text: str) -> None:
    """Raise for an output that is not what its case asks for."""
    if name in SCHEMAS:
        validator = jsonschema.Draft202012Validator
        validator(SCHEMAS[name], format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))
    else:
        assert re.fullmatch(REGEXES[name], text), text
