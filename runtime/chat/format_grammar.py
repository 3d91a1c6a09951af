"""Grammars of tool calls in the formats of `runtime.chat.answer_formats`: calls and nothing else.

They are structural tags of xgrammar, built from the same rows that the parser reads. A mark that
is a token of the tokenizer is that token, any other one its spelling.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from runtime.chat.answer_format import AnswerFormat
from runtime.chat.answer_formats import (
    CHANNEL,
    CONSTRAIN,
    DEEPSEEK_V32,
    END,
    HARMONY,
    MARKS,
    MESSAGE,
    START,
    CallFormat,
)
from runtime.chat.call_grammar import call_grammar
from runtime.chat.marks import DSML, THINK, THINK_END
from runtime.errors import GrammarError
from runtime.messages import PLACE
from runtime.sampling import MAX_GRAMMAR_CHARS

Part = dict[str, Any]

_MARK = re.compile(f"([{''.join(MARKS)}])")
_NAME = re.compile(r"[\w.:/-]+")
# Beside these a type may not be enforceable.
_UNIONS = {"$ref", "allOf", "anyOf", "oneOf"}
_HARMONY_CALL = (f"{CHANNEL}commentary to=functions.NAME {CONSTRAIN}json{MESSAGE}", "")


def format_calls(
    form: AnswerFormat,
    tools: Mapping[str, Any],
    *,
    most: int | None = None,
    begun: bool = False,
    thinks: bool = False,
) -> str:
    """Return the structural tag of an answer's calls.

    tools   the parameters' schema of each tool that may be called; None: any object
    most    how many calls there may be, None: any number
    begun   whether the first call's mark is there already
    thinks  whether reasoning may stand before the calls, where the model begins it itself
    Raises GrammarError, naming the tool, for what no call in this format can be held to.
    """
    calls = form.calls
    assert calls is not None, "tools are refused where no format is known"
    if calls is DEEPSEEK_V32:
        dsml = form.ids[DSML]
        return call_grammar(tools, dsml_id=dsml, most=most, begun=begun, block="function_calls")
    writer = _Writer(form, calls)
    parts = writer.calls(tools, most=most, begun=begun)
    if thinks and not begun:
        parts = [*writer.reasoning(), *parts]
    text = msgspec.json.encode({"type": "structural_tag", "format": _sequence(parts)}).decode()
    if len(text) > MAX_GRAMMAR_CHARS:
        raise GrammarError("the tools' schemas are too long to hold a call to", param="tools")
    return text


def opening_id(form: AnswerFormat) -> int | None:
    """Return the token that begins every call of a format, None where there is no such token."""
    calls = form.calls
    if calls is None or not calls.openers or calls.bare:
        return None
    written = calls.block[0] or calls.call[0]
    return form.ids.get(DSML if calls is DEEPSEEK_V32 else written[0])


class _Writer:
    """Writes the parts of one format."""

    def __init__(self, form: AnswerFormat, calls: CallFormat) -> None:
        self._form = form
        self._format = calls

    def calls(self, tools: Mapping[str, Any], *, most: int | None, begun: bool) -> list[Part]:
        """Return the parts of calls, with what is written around all of them."""
        calls = self._format
        before, after = calls.block
        # Of harmony's calls each ends the answer.
        most = 1 if calls is HARMONY else most
        first = _either([self._call(name, schema) for name, schema in tools.items()])
        more = [] if most == 1 else [self._repeated(first, most)]
        if begun and not before:
            first = _either([self._call(n, schema, cut=1) for n, schema in tools.items()])
        # What the models write between their reasoning and calls.
        blank = self._form.reasoning is not None and calls is not HARMONY and not begun
        gap = [{"type": "optional", "content": part} for part in self._text("\n\n") if blank]
        return [*gap, *self._text(before[begun:]), first, *more, *self._text(after)]

    def reasoning(self) -> list[Part]:
        """Return the parts of reasoning that the model may begin with."""
        ids = self._form.ids
        if self._format is HARMONY:
            begin, end = f"{CHANNEL}analysis{MESSAGE}", f"{END}{START}assistant"
            barred = [ids[mark] for mark in HARMONY.marks]
        elif self._form.reasoning is not None and THINK in ids:
            begin, end, barred = THINK, THINK_END, [ids[THINK], ids[THINK_END]]
        else:
            return []
        inside: Part = {"type": "any_tokens", "exclude_tokens": barred}
        whole = _sequence([*self._text(begin), inside, *self._text(end)])
        return [{"type": "optional", "content": whole}]

    def _repeated(self, call: Part, most: int | None) -> Part:
        """Return the format of calls after the first one."""
        one = _sequence([*self._text(self._format.separator), call])
        if most is None:
            return {"type": "star", "content": one}
        return {"type": "repeat", "min": 0, "max": most - 1, "content": one}

    def _call(self, name: str, schema: Any, *, cut: int = 0) -> Part:
        """Return the format of one call, without so many of its first characters."""
        before, after = _HARMONY_CALL if self._format is HARMONY else self._format.call
        if "JSON_NAME" not in before and _NAME.fullmatch(name) is None:
            raise GrammarError(f"a call cannot name the tool {name[:80]!r}", param="tools")
        before = before.replace("JSON_NAME", json.dumps(name, ensure_ascii=False))
        before = before.replace("NAME", name)[cut:]
        arguments: Part = {
            "type": "json_schema",
            "json_schema": _object_schema(name, schema),
            PLACE: f"the parameters of tool {name!r}",
        }
        return _sequence([*self._text(before), arguments, *self._text(after)])

    def _text(self, text: str) -> list[Part]:
        """Return the parts of a text in which marks are tokens."""
        ids = self._form.ids
        parts: list[Part] = []
        for piece in filter(None, _MARK.split(text)):
            if piece in ids:
                parts.append({"type": "token", "token": ids[piece]})
            else:
                parts.append({"type": "const_string", "value": MARKS.get(piece, piece)})
        return parts


def _object_schema(name: str, schema: Any) -> dict[str, Any]:
    """Return a schema of arguments, which are always an object."""
    if schema is None or schema is True:
        return {"type": "object"}
    if not isinstance(schema, dict):
        raise GrammarError(f"the parameters of tool {name!r} must be a schema", param="tools")
    rules = cast(dict[str, Any], schema)
    kind: Any = rules.get("type", "object")
    if "object" not in (cast(list[Any], kind) if isinstance(kind, list) else [kind]):
        raise GrammarError(
            f"the parameters of tool {name!r}: the arguments of a call are an object", param="tools"
        )
    return rules if _UNIONS & rules.keys() else {**rules, "type": "object"}


def _sequence(parts: list[Part]) -> Part:
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": parts}


def _either(parts: list[Part]) -> Part:
    return parts[0] if len(parts) == 1 else {"type": "or", "elements": parts}
