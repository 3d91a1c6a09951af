"""Custom tools: those that take text instead of JSON.

To the model such a tool is a function with one text, `input`. Its calls are turned into custom ones
where they go out, and back into functions' where a client sends them again.
"""

import json
import re
from collections.abc import Collection
from typing import Any, cast

import msgspec

from runtime.errors import BadRequest
from runtime.server.fields import refusing_depth

_INPUT = "input"
_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# Characters of a JSON string, no escape cut off.
_CHARACTERS = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')


class CustomGrammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the text must be: a pattern (`regex`), or in another syntax, which is refused."""

    syntax: str | None = None
    definition: str | None = None


class CustomFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """`format` of a custom tool; its grammar is in `grammar`, in `/v1/responses` next to `type`."""

    type: str
    grammar: CustomGrammar | None = None
    syntax: str | None = None
    definition: str | None = None


class CustomTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that takes text."""

    name: str
    description: str | None = None
    format: CustomFormat | None = None

    def pattern(self, where: str) -> str | None:
        """Return what the text must match, None: any. Raises BadRequest for another grammar."""
        form = self.format
        if form is None or form.type == "text":
            return None
        if form.type != "grammar":
            text = f"{where}.format.type must be text or grammar, got {form.type[:80]!r}"
            raise BadRequest(text, param="tools")
        grammar = form.grammar or CustomGrammar(form.syntax, form.definition)
        if grammar.syntax != "regex" or grammar.definition is None:
            text = (
                f"{where}: a grammar of the syntax {str(grammar.syntax)[:80]!r} is not supported: "
                "give one of the syntax 'regex' with its definition, or the format text"
            )
            raise BadRequest(text, param="tools", code="not_supported")
        return grammar.definition

    def parameters(self, where: str) -> dict[str, Any]:
        """Return the schema of the function that the model sees instead. Raises BadRequest."""
        pattern = self.pattern(where)
        text = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
        return {
            "type": "object",
            "properties": {_INPUT: text},
            "required": [_INPUT],
            "additionalProperties": False,
        }


def as_arguments(text: str) -> str:
    """Return the arguments of a function's call with the input of a custom one."""
    with refusing_depth("messages"):
        return msgspec.json.encode({_INPUT: text}).decode()


def as_input(arguments: str) -> str:
    """Return the input that a whole call's arguments have; arguments of another form as it is."""
    try:
        found: Any = json.loads(arguments)
    except ValueError:
        return arguments
    text = cast(dict[str, Any], found).get(_INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


class InputText:
    """The input of a call whose arguments come piece by piece."""

    def __init__(self) -> None:
        self._rest = ""
        self._opened = False

    def feed(self, arguments: str) -> str:
        """Take more of the arguments; return the text that they add."""
        self._rest += arguments
        if not self._opened:
            opening = _OPENING.match(self._rest)
            if opening is None:
                return ""
            self._opened, self._rest = True, self._rest[opening.end() :]
        found = _CHARACTERS.match(self._rest)
        assert found is not None, "the pattern matches nothing, too"
        text: str = json.loads(f'"{found.group()}"', strict=False)
        end = found.end()
        if text and "\ud800" <= text[-1] <= "\udbff":  # half of a character
            text, end = text[:-1], end - len(r"\u0000")
        self._rest = self._rest[end:]
        return text

    def finish(self) -> str:
        """Return all of arguments that have no input."""
        return "" if self._opened else self._rest


class CustomCalls:
    """Turns calls of a chat's answer, as functions', into those of custom tools.

    names  of the custom tools
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._inputs: dict[int, InputText] = {}

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a whole message."""
        if not self._names or not message.get("tool_calls"):
            return message
        return {**message, "tool_calls": [self._whole(call) for call in message["tool_calls"]]}

    def _whole(self, call: dict[str, Any]) -> dict[str, Any]:
        said = call["function"]
        if said["name"] not in self._names:
            return call
        custom = {"name": said["name"], "input": as_input(said["arguments"])}
        return {"id": call["id"], "type": "custom", "custom": custom}

    def delta(self, delta: dict[str, Any]) -> dict[str, Any] | None:
        """Return a delta of a stream; None where nothing is left of it."""
        if not self._names or "tool_calls" not in delta:
            return delta
        news = list(filter(None, map(self._piece, delta["tool_calls"])))
        rest = {name: value for name, value in delta.items() if name != "tool_calls"}
        return {**rest, "tool_calls": news} if news else rest or None

    def _piece(self, call: dict[str, Any]) -> dict[str, Any] | None:
        said, index = call["function"], call["index"]
        if said.get("name") in self._names:
            self._inputs[index] = InputText()
            told = {name: call[name] for name in ("index", "id")}
            text = self._inputs[index].feed(said["arguments"])
            return {**told, "type": "custom", "custom": {"name": said["name"], "input": text}}
        if index not in self._inputs:
            return call
        text = self._inputs[index].feed(said["arguments"])
        return {"index": index, "custom": {"input": text}} if text else None

    def finish(self) -> dict[str, Any] | None:
        """Return the last delta of a stream, if one is due."""
        left = {index: text.finish() for index, text in self._inputs.items()}
        news = [{"index": k, "custom": {"input": text}} for k, text in left.items() if text]
        return {"tool_calls": news} if news else None
