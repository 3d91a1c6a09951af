"""Grammars of tool calls: a block of V4 calls and nothing else.

It is a structural tag of xgrammar. Its own tag for V4 spells the DSML mark as text, which a model
can also write in ordinary tokens, and such calls are none (`runtime.chat.marks`): here the mark
is its token. A parameter that is a plain string stands in the block as it is, any other as JSON.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from runtime.chat.call_arguments import SHARED, arguments
from runtime.errors import GrammarError
from runtime.messages import PLACE
from runtime.sampling import MAX_GRAMMAR_CHARS

_ANY_TEXT = r"[\s\S]*"
# What follows the name in a parameter's tag.
_KIND = '" string="'
_MOST_FORCED = 16
# What a plain string may be held to; with anything else it is written as JSON.
_PLAIN = {"type", "enum", "const", "pattern", "minLength", "maxLength"}
# Where a schema by itself keeps that of all arguments, which its references lead through.
_ALL_ARGUMENTS = "arguments"
_DEFINITIONS = ("#/$defs/", "#/definitions/")
_ANNOTATIONS = {"title", "description", "default", "examples"}

Part = dict[str, Any]


def most_forced_calls(tools: Mapping[str, Any]) -> int:
    """Return how many calls of these tools an answer that has to call some may make.

    Without a bound a model that finds one more call likelier than the end repeats it for ever.
    Calls without arguments only repeat each other: where no tool has any, one of each is enough.
    """
    if any(_has_arguments(schema) for schema in tools.values()):
        return _MOST_FORCED
    return min(len(tools), _MOST_FORCED)


def _has_arguments(schema: Any) -> bool:
    try:
        return bool(arguments(schema).properties)
    except GrammarError:
        return True  # for `call_grammar` to refuse


def call_grammar(
    tools: Mapping[str, Any],
    *,
    dsml_id: int,
    most: int | None = None,
    begun: bool = False,
    block: str = "tool_calls",
) -> str:
    """Return the structural tag of a block of calls.

    tools     the parameters' schema of each tool that may be called; None: nothing is held to any
    dsml_id   token id of the DSML mark
    most      how many calls there may be, None: any number
    begun     whether the block's first mark is there already
    block     what the block is called
    Raises GrammarError, naming the tool, for arguments that no block of calls can be held to, and
    where their schemas are longer than a grammar may be.
    """
    mark, schemas = {"type": "token", "token": dsml_id}, _Schemas()
    calls = _either(
        [
            _invoke(name, [_any_parameters(mark)], mark)
            if schema is None
            else _invoke(name, _parameters(name, schema, mark, schemas), mark)
            for name, schema in tools.items()
        ]
    )
    whole = _sequence(
        *([] if begun else [_text("\n\n<"), mark]),
        _text(f"{block}>\n"),
        _some(calls, most),
        _text("</"),
        mark,
        _text(f"{block}>"),
    )
    return msgspec.json.encode({"type": "structural_tag", "format": whole}).decode()


class _Schemas:
    """Writes the schemas of arguments, no more of them than a grammar may have.

    Each repeats the definitions that it refers to: together they may be far longer than the tools.
    """

    def __init__(self) -> None:
        self._left = MAX_GRAMMAR_CHARS

    def write(self, schema: Any) -> msgspec.Raw:
        """Return a schema as JSON. Raises GrammarError."""
        text = msgspec.json.encode(schema)
        self._left -= len(text)
        if self._left < 0:
            raise GrammarError("the tools' schemas are too long to hold a call to", param="tools")
        return msgspec.Raw(text)


def _invoke(name: str, parameters: Iterable[Part], mark: Part) -> Part:
    return _sequence(
        _text("<"),
        mark,
        _text(f'invoke name="{name}">\n'),
        *parameters,
        _text("</"),
        mark,
        _text("invoke>\n"),
    )


def _any_parameters(mark: Part) -> Part:
    """Return the format of parameters of any name and value, which end where they say so.

    A body without them would have no end but one that may stand in it, too: the calls after it
    could be read as a part of it, and be held to nothing.
    """
    said = {"type": "regex", "pattern": f'parameter name="[^"]+{_KIND}(true|false)">{_ANY_TEXT}'}
    parameter = _sequence(_text("<"), mark, said, _text("</"), mark, _text("parameter>\n"))
    return {"type": "star", "content": parameter}


def _parameters(name: str, schema: Any, mark: Part, schemas: _Schemas) -> list[Part]:
    try:
        properties, required, shared = arguments(schema)
    except GrammarError as fault:
        raise GrammarError(f"the parameters of tool {name!r}: {fault}", param="tools") from None
    for key in properties:
        if _KIND in key:
            raise GrammarError(
                f"the parameters of tool {name!r}: a call cannot name {key[:80]!r}, for {_KIND!r} "
                "ends a name",
                param="tools",
            )
    whole: Any = None
    if _leads_to_root([*properties.values(), *shared.values()]):
        try:
            whole = _moved(schema)
        except RecursionError:
            reason = f"the parameters of tool {name!r} are nested too deeply"
            raise GrammarError(reason, param="tools") from None
    return [
        parameter if key in required else {"type": "optional", "content": parameter}
        for key, value in properties.items()
        for alone in [_by_itself(value, shared, whole)]
        for parameter in [_parameter(name, key, alone, mark=mark, schemas=schemas)]
    ]


def _by_itself(schema: Any, shared: dict[str, Any], whole: Any) -> Any:
    """Return the schema of an argument so that its references are right with it as their root.

    shared  definitions of all arguments, enough where references lead nowhere else
    whole   the schema of all arguments, moved; None where those definitions are enough
    """
    if not isinstance(schema, dict) or _plain_string(schema) is not None:
        return cast(object, schema)
    rules = cast(dict[str, Any], schema)
    if not any(_references(rules)):
        return rules
    if whole is None:
        return {**shared, **rules}
    inside = {key: rule for key, rule in rules.items() if key not in SHARED}
    return {**_moved(inside), "$defs": {_ALL_ARGUMENTS: whole}}


def _leads_to_root(schemas: object) -> bool:
    """Whether a reference inside leads elsewhere than into the definitions of all arguments."""
    return any(not reference.startswith(_DEFINITIONS) for reference in _references(schemas))


def _references(schema: object) -> Iterator[str]:
    """Yield the references inside to parts of the same whole."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(cast(list[object], part))
        elif isinstance(part, dict):
            rules = cast(dict[str, object], part)
            reference = rules.get("$ref")
            if isinstance(reference, str) and reference.startswith("#"):
                yield reference
            waiting.extend(rules.values())


def _moved(part: Any) -> Any:
    """Return a part of the schema of all arguments with its references led through where that is
    kept.
    """
    if isinstance(part, list):
        return [_moved(inner) for inner in cast(list[object], part)]
    if not isinstance(part, dict):
        return part
    rules = {key: _moved(rule) for key, rule in cast(dict[str, Any], part).items()}
    reference = rules.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        rules["$ref"] = f"#/$defs/{_ALL_ARGUMENTS}{reference[1:]}"
    return rules


def _parameter(tool: str, name: str, schema: Any, *, mark: Part, schemas: _Schemas) -> Part:
    plain = _plain_string(schema)
    if plain is not None:
        kind, value = "true", plain
    else:
        value: Part = {"type": "json_schema", "json_schema": schemas.write(schema)}
        kind = "false"
    value = {**value, PLACE: f"the parameter {name!r} of tool {tool!r}"}
    return _sequence(
        _text("<"),
        mark,
        _text(f'parameter name="{name}{_KIND}{kind}">'),
        value,
        _text("</"),
        mark,
        _text("parameter>\n"),
    )


def _plain_string(schema: Any) -> Part | None:
    """Return the format of a string as it stands in the block; None for any other value.

    A string of which more is said than one thing is for JSON's compiler to hold, or to refuse.
    """
    if not isinstance(schema, dict):
        return None
    rules = cast(dict[str, Any], schema)
    if rules.get("type") != "string" or not rules.keys() <= _PLAIN | _ANNOTATIONS:
        return None
    limits = {"minLength", "maxLength"} & rules.keys()
    held = rules.keys() & {"const", "enum", "pattern"}
    if len(held) + bool(limits) > 1 or not _are_counts(rules):
        return None
    choices: Any = [rules["const"]] if "const" in rules else rules.get("enum")
    if choices is not None:
        named = cast(list[object], choices) if isinstance(choices, list) else []
        texts = [choice for choice in named if isinstance(choice, str)]
        if not texts or len(texts) < len(named):
            return None
        return _either([_text(text) for text in texts])
    if "pattern" in rules:
        return {"type": "regex", "pattern": rules["pattern"] or _ANY_TEXT}
    if limits:
        bounds = f"{rules.get('minLength', 0)},{rules.get('maxLength', '')}"
        return {"type": "regex", "pattern": r"[\s\S]{" + bounds + "}"}
    return {"type": "regex", "pattern": _ANY_TEXT}


def _are_counts(rules: dict[str, Any]) -> bool:
    """Whether the limits of a string's length are counts, and leave room between them."""
    least, most = rules.get("minLength", 0), rules.get("maxLength")
    counts = [least] if most is None else [least, most]
    return all(type(count) is int and count >= 0 for count in counts) and counts == sorted(counts)


def _sequence(*parts: Part) -> Part:
    return {"type": "sequence", "elements": list(parts)}


def _some(part: Part, most: int | None) -> Part:
    """Return the format of one or more of a part."""
    if most is None:
        return {"type": "plus", "content": part}
    return part if most == 1 else {"type": "repeat", "min": 1, "max": most, "content": part}


def _either(parts: list[Part]) -> Part:
    return parts[0] if len(parts) == 1 else {"type": "or", "elements": parts}


def _text(text: str) -> Part:
    return {"type": "const_string", "value": text}
