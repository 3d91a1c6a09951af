"""One call whose arguments are JSON, read from behind the mark that opens it.

The name stands in the JSON object (`{"name": ..., "arguments": ...}`) or before it. As long as it
is not certain that there is a call, nothing is handed on: what turns out to be none is text.
"""

from collections.abc import Collection
from typing import Any, Literal

import msgspec

from runtime.chat.answer_formats import CallFormat
from runtime.chat.call_values import is_json
from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat.json_arguments import JsonArguments
from runtime.chat.json_extent import JsonExtent
from runtime.chat.mark_lexer import Lexeme

CallPart = CallPiece | InvalidCall
Phase = Literal["head", "first key", "key", "colon", "value", "comma", "sole"]

_ARGUMENTS = ("arguments", "parameters")
_MEMBERS = (*_ARGUMENTS, "name", "type", "id")
_MOST_HEAD = 256
_CUT_OFF = "the answer ended inside this call"


class JsonCall:
    """Reads one call.

    state  undecided; call, once it is certain; text: there is no call; ended: the call is over

    Of a call of no known tool the name is reported, and the rest is dropped. A bare object of no
    known tool is text: any JSON object might have a name.
    """

    def __init__(
        self,
        form: CallFormat,
        tools: Collection[str],
        *,
        bare: bool = False,
        name: str | None = None,
    ) -> None:
        """Begin behind an opener.

        bare  before the brace of an object that may be none of a call
        name  of the tool, where it is known and its arguments follow
        """
        self.state: Literal["undecided", "call", "text", "ended"] = "undecided"
        self._form = form
        self._tools = tools
        self._bare = bare
        self._phase: Phase = "head" if name is None else "sole"
        self._head = ""
        self._parts: list[CallPart] = []
        self._arguments: JsonArguments | None = None
        # Arguments that came before the name.
        self._early: str | None = None
        self._unknown = False
        self._key = ""
        self._extent: JsonExtent | None = None
        self._value: list[str] = []
        if name is not None:
            self._call(name)

    @property
    def is_open(self) -> bool:
        """Whether more of the answer may belong to it."""
        return self.state in ("undecided", "call")

    def take(self, lexeme: Lexeme) -> tuple[list[CallPart], int]:
        """Return what a lexeme settles, and how many of its characters belong to the call.

        Once there is no call the characters do not matter: all are text. A mark inside of a JSON
        string is its spelling; anywhere else but in the head it ends the call.
        """
        used = len(lexeme.text)
        if not lexeme.mark:
            used = self._read(lexeme.text)
        elif self._extent is not None and self._extent.in_string:
            self._read(lexeme.shown)
        elif self._phase == "head" and not self._form.blank_head and not self._bare:
            self._head += lexeme.mark
        else:
            self._break("a mark stands inside the call")
            used = 0
        return self._taken(), used

    def finish(self) -> list[CallPart]:
        """Return what the answer's end says of the call."""
        if self.is_open:
            self._break(_CUT_OFF)
        return self._taken()

    def _taken(self) -> list[CallPart]:
        parts, self._parts = self._parts, []
        return parts

    def _break(self, error: str) -> None:
        if self.state == "undecided":
            self.state = "text"
            return
        self.state = "ended"
        if self._arguments is not None:
            self._parts.append(self._arguments.invalid(error))

    def _read(self, text: str) -> int:
        at = 0
        while at < len(text) and self.is_open:
            if self._extent is not None:
                at = self._go_on(self._extent, text, at)
            elif self._step(text[at]):
                at += 1
        return at

    def _step(self, char: str) -> bool:
        """Take a character that is part of no value; False: it begins one, and is still to read."""
        match self._phase, char:
            case "head", "{":
                return self._end_head()
            case "head", _:
                self._head += char
                if (self._form.blank_head and not char.isspace()) or len(self._head) > _MOST_HEAD:
                    self.state = "text"
            case _, " " | "\n" | "\t" | "\r":
                pass
            case "key" | "first key", '"':
                return self._begin("")
            case "colon", ":":
                self._phase = "value"
            case "value", _ if self._key not in _ARGUMENTS or JsonArguments.may_begin(char):
                return self._begin(self._key)
            case "sole", "{":
                return self._begin(_ARGUMENTS[0])
            case "comma", ",":
                self._phase = "key"
            case "comma" | "first key", "}":
                self._close()
            case _:
                self._break("the call is no JSON")
        return True

    def _end_head(self) -> bool:
        found = None if self._bare else self._form.head.fullmatch(self._head)
        name = found.groupdict().get("name") if found else None
        if name is not None:
            self._phase = "sole"
            self._call(name)
            return False
        self._phase = "first key"
        if found is None and not self._bare:
            self.state = "text"
        return True

    def _begin(self, key: str) -> Literal[False]:
        """Begin a value, or with "" a key."""
        self._key, self._extent, self._value = key, JsonExtent(), []
        return False

    def _go_on(self, extent: JsonExtent, text: str, start: int) -> int:
        end = extent.take(text, start)
        piece = text[start:end]
        if self._key in _ARGUMENTS and self._arguments is not None:
            self._parts += self._arguments.add(piece)
            if self._arguments.begun:
                self.state = "call"
        elif not (self._unknown and self._key in _ARGUMENTS):
            self._value.append(piece)
        if extent.ended:
            self._extent = None
            self._end_value("".join(self._value))
        return end

    def _end_value(self, text: str) -> None:
        """Take in a whole key or value."""
        if self._phase == "sole":
            self._close()
        elif self._phase in ("key", "first key"):
            self._key, self._phase = str(_decoded(text)), "colon"
            if self._bare and self._key not in _MEMBERS:
                self._break("no call has such a member")
        else:
            self._phase = "comma"
            if self._key == "name":
                name = _decoded(text)
                if isinstance(name, str) and self._arguments is None:
                    self._call(name)
                else:
                    self._break("the call's name is no string, or there are two")
            elif self._key in _ARGUMENTS and self._arguments is None:
                self._early = text

    def _call(self, name: str) -> None:
        """Take in the name; arguments that came before it follow."""
        if name in self._tools:
            self._arguments = JsonArguments(name)
            if self._early is not None:
                self._parts += self._arguments.add(self._early)
                self.state = "call" if self._arguments.begun else self.state
        elif self._bare:
            self.state = "text"
        else:
            self._unknown, self.state = True, "call"
            self._parts.append(InvalidCall(name, "there is no such tool"))

    def _close(self) -> None:
        """End a call whose last brace has come."""
        if self._arguments is None:
            self.state = "ended" if self._unknown else "text"
            return
        last = self._arguments.close()
        if isinstance(last, InvalidCall) and self.state == "undecided":
            self.state = "text"
            return
        self.state = "ended"
        self._parts.append(last)


def _decoded(text: str) -> Any:
    return msgspec.json.decode(text.encode()) if is_json(text) else None
