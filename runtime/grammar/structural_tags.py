"""Structural tags whose schemas and patterns are rules of ours, which hold outputs to all of them.

A part of another style than JSON is left to the compiler, which drops some keywords there: it may
have only those that it holds outputs to.
"""

from typing import Any, cast

from runtime.errors import GrammarError
from runtime.grammar.ebnf import Rules
from runtime.grammar.literals import one_of
from runtime.grammar.patterns import text_rule
from runtime.grammar.schema import PreparedSchema
from runtime.grammar.schema_rules import schema_text
from runtime.messages import PLACE

_SCHEMA_FORMATS = ("json_schema", "qwen_xml_parameter")
_OPTIONS = ("any_order", "excludes", "max_whitespace_cnt")
_HELD = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf",
    "$ref", "$defs", "definitions", "title", "description", "default", "examples",
}  # fmt: skip


def prepare_tag(tag: object) -> None:
    """Write every schema and pattern in a decoded structural tag as rules, in place.

    Raises GrammarError for what cannot be enforced, with its place.
    """
    waiting = [tag]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(cast(list[object], part))
        elif isinstance(part, dict):
            inner = cast(dict[str, Any], part)
            place = inner.pop(PLACE, "")
            try:
                if inner.get("type") in _SCHEMA_FORMATS:
                    _prepare_schema(inner)
                elif inner.get("type") == "regex" and isinstance(inner.get("pattern"), str):
                    rules = Rules()
                    _become(inner, rules, text_rule(rules, inner["pattern"]))
                elif texts := _texts_to_choose(inner):
                    rules = Rules()
                    _become(inner, rules, one_of(rules, texts))
                else:
                    waiting.extend(inner.values())
            except GrammarError as fault:
                raise GrammarError(
                    f"{place}: {fault.message}" if place else fault.message
                ) from None


def _become(part: dict[str, Any], rules: Rules, root: str) -> None:
    part.clear()
    part.update(type="grammar", grammar=rules.text(root))


def _texts_to_choose(part: dict[str, Any]) -> list[str]:
    """Return the texts that a part lets an output choose from, none where it is another part."""
    choices = part.get("elements")
    if part.get("type") != "or" or not isinstance(choices, list):
        return []
    texts: list[str] = []
    for choice in cast(list[object], choices):
        said = cast(dict[str, Any], choice) if isinstance(choice, dict) else {}
        if said.get("type") != "const_string" or not isinstance(said.get("value"), str):
            return []
        texts.append(said["value"])
    return texts


def _prepare_schema(part: dict[str, Any]) -> None:
    schema = part.get("json_schema")
    style = part.get("style", "json") if part["type"] == "json_schema" else "qwen_xml"
    if style == "json" and not any(part.get(name) for name in _OPTIONS):
        grammar = schema_text(schema)
        part.clear()
        part.update(type="grammar", grammar=grammar)
        return
    what = f"style {style!r}" if style != "json" else "these options of a structural tag"
    for rules, path in PreparedSchema(schema).parts():
        for name in rules.keys() - _HELD:
            raise GrammarError(
                f"{path}: the schema keyword {name!r} cannot be enforced with {what}"
            )
