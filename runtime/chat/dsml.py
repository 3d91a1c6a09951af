"""The tool-call block of a V4 answer: from marked text to calls, one at a time.

A call is told when it is whole, its closing tag included, and not before: what has been told
cannot be taken back, half an argument is no JSON, and half a command that was closed to become
JSON may be run. Whatever the model wrote, `arguments` is one valid JSON object.

Beyond the published form it reads what models were seen to write: the wrapper missing or
misspelt, a self-closing invoke, a JSON object as the body, a parameter without `string=`, a
closing tag left out before the next tag, arguments inside one more object.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from runtime.chat.call_arguments import arguments
from runtime.chat.marks import DSML, SPELLING
from runtime.errors import GrammarError

_INVOKE = re.compile(r'\s*invoke\s+name\s*=\s*"([^"]*)"')
_PARAMETER = re.compile(r'\s*parameter name="(.*?)" string="(true|false)">(.*)', re.DOTALL)
_LOOSE_PARAMETER = re.compile(r'\s*parameter\s+name\s*=\s*"([^"]*)"([^>]*)>(.*)', re.DOTALL)
_LOOSE_KIND = re.compile(r'string\s*=\s*"?(true|false)')
_WRAPPERS = ("arguments", "input", "parameters")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call; `arguments` is a JSON object as text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class InvalidCall:
    """A call that cannot be handed to anyone: what of it can be told, and why."""

    name: str | None
    error: str


@dataclass(slots=True)
class _Tag:
    """A tag and the text after it, growing.

    head  the tag itself, up to its first ">", once that is there
    """

    closing: bool
    pieces: list[str] = field(default_factory=list)
    head: str | None = None

    def add(self, text: str) -> None:
        self.pieces.append(text)
        if self.head is None and ">" in text:
            self.head = "".join(self.pieces).partition(">")[0].strip()

    def ends_with(self, end: str) -> bool:
        """Look at the last characters only: a tag may hold megabytes."""
        return "".join(self.pieces[-len(end) :]).endswith(end)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ToolCallBlock:
    """Reads what follows the first `<` and mark of a block.

    tools  schema of the parameters by tool name; a call of any other tool is invalid
    """

    def __init__(self, tools: Mapping[str, Any]) -> None:
        self._tools = tools
        self._tag = _Tag(closing=False)
        self._settled = False
        # The tags of one call so far: the invoke itself and its parameters.
        self._invoke: list[_Tag] | None = None

    def text(self, piece: str) -> Iterator[ToolCall | InvalidCall]:
        """Take text without marks; yield the call that it completes."""
        self._tag.add(piece)
        head = self._tag.head
        if head is not None and not self._settled and (self._tag.closing or head.endswith("/")):
            yield from self._settle()

    def mark(self) -> Iterator[ToolCall | InvalidCall]:
        """Take a DSML token, which begins the next tag; yield the call that this completes."""
        closing = self._tag.ends_with("</")
        if not closing and not self._tag.ends_with("<"):
            self._tag.add(SPELLING[DSML])
            return
        self._tag.pieces = [self._tag.text[: -2 if closing else -1]]
        yield from self._settle()
        self._tag, self._settled = _Tag(closing), False

    def finish(self) -> Iterator[InvalidCall]:
        """Yield the call that the answer's end cut off, if there is one."""
        begins = not self._settled and not self._tag.closing and self._tag.text.strip()
        if self._invoke is None and begins and _INVOKE.match(self._tag.text):
            self._invoke = [self._tag]
        if self._invoke is not None:
            yield InvalidCall(_name(self._invoke), "the answer ended inside this call")

    def _settle(self) -> Iterator[ToolCall | InvalidCall]:
        """Make of the current tag what it is."""
        if self._settled:
            return
        self._settled = True
        tag = self._tag
        kind = tag.text.lstrip()
        if tag.closing:
            # The block's own end closes a call as well.
            if not kind.startswith("parameter"):
                yield from self._close()
        elif kind.startswith("parameter") and self._invoke is not None:
            self._invoke.append(tag)
        elif kind.startswith("invoke"):
            yield from self._close()
            self._invoke = [tag]
            if tag.head is not None and tag.head.endswith("/"):
                yield from self._close()

    def _close(self) -> Iterator[ToolCall | InvalidCall]:
        invoke, self._invoke = self._invoke, None
        if invoke is None:
            return
        name = _name(invoke)
        if name is None:
            yield InvalidCall(None, "the call names no tool")
        elif name not in self._tools:
            yield InvalidCall(name, "there is no such tool")
        else:
            yield _call(name, invoke, _properties(self._tools[name]))


def _name(invoke: list[_Tag]) -> str | None:
    found = _INVOKE.match(invoke[0].text)
    return found[1] if found else None


def _call(name: str, invoke: list[_Tag], properties: Mapping[str, Any]) -> ToolCall | InvalidCall:
    head, *rest = invoke
    # What stands behind a self-closing invoke, in the same piece or not, is none of its body.
    alone = head.head is not None and head.head.endswith("/")
    body = "" if alone else head.text.partition(">")[2].strip()
    if body and not rest:
        unwrapped = _unwrapped(body, properties)
        if unwrapped is None:
            return InvalidCall(name, "the call's body is no JSON object")
        return ToolCall(name, unwrapped)
    values: dict[str, str] = {}
    for tag in rest:
        parameter = _parameter(tag.text, properties)
        if parameter is None:
            return InvalidCall(name, "a parameter has no name")
        values[parameter[0]] = parameter[1]
    [only] = values if len(values) == 1 else [None]
    if only in _WRAPPERS and only not in properties:
        inner = _decoded(values[only])
        unwrapped = _unwrapped(inner if isinstance(inner, str) else values[only], properties)
        if unwrapped is not None:
            return ToolCall(name, unwrapped)
    written = (f"{_quoted(key)}: {value}" for key, value in values.items())
    return ToolCall(name, "{" + ", ".join(written) + "}")


def _parameter(text: str, properties: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a parameter's name and its value as JSON."""
    found = _PARAMETER.match(text)
    if found:
        name, kind, value = found.groups()
    else:
        loose = _LOOSE_PARAMETER.match(text)
        if loose is None:
            return None
        name, attributes, value = loose.groups()
        told = _LOOSE_KIND.search(attributes)
        kind = told[1] if told else _kind(properties.get(name))
    if kind == "true" or not _is_json(value):
        return name, _quoted(value)
    return name, value.strip()


def _kind(schema: Any) -> str:
    """Return what `string=` would say of a parameter with this schema."""
    declared = schema.get("type") if isinstance(schema, dict) else None
    return "true" if declared in ("string", ["string"]) else "false"


def _unwrapped(text: str, properties: Mapping[str, Any]) -> str | None:
    """Return a JSON object as text, taken out of `{"arguments": ...}`; None if it is none."""
    decoded = _decoded(text)
    if not isinstance(decoded, dict):
        return None
    value = cast(dict[str, Any], decoded)
    [only] = value if len(value) == 1 else [None]
    if only in _WRAPPERS and only not in properties and isinstance(value[only], dict):
        return json.dumps(value[only], ensure_ascii=False)
    return text.strip()


def _properties(schema: Any) -> Mapping[str, Any]:
    """Return what a schema says of each argument, as a forced call is held to it."""
    try:
        return arguments(schema).properties
    except GrammarError:
        found = schema.get("properties") if isinstance(schema, dict) else None
        return found if isinstance(found, dict) else {}


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text.encode())
    # Numbers beyond a double, or nested too deeply, would fail in the client as well.
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _decoded(text: str) -> Any:
    return msgspec.json.decode(text.encode()) if _is_json(text) else None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
