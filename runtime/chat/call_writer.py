"""The arguments of one call, written as JSON while the model writes them.

What is written is never taken back. The text of a string goes out as it comes where no other
reading of it is left. Any other value goes out when its parameter is closed, which settles its
reading. Of a parameter that comes twice the first value counts. The closing brace is written only
with the call's closing tag: a call that is cut off never becomes JSON, so that no client can run
half a command. A call whose form is not the published one goes out when it is whole.

All arguments in one parameter, or one object, named "arguments", "input" or "parameters" are taken
out of it, unless the tool has a parameter of that name. A value in it that is no object is that of
the tool's only parameter, or of the only required one, if its schema allows the value.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from runtime.chat.call_values import (
    argument_json,
    fitted,
    is_certain_text,
    is_json,
    quoted,
    raw_members,
    written_object,
)
from runtime.chat.tool_parameters import ToolParameters

_WRAPPERS = ("arguments", "input", "parameters")


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of a call.

    name       of the tool, in the call's first piece; None in later ones
    arguments  more of the arguments: all pieces together are one JSON object
    ended      whether the call is whole with this piece
    """

    name: str | None
    arguments: str
    ended: bool = False


@dataclass(frozen=True, slots=True)
class InvalidCall:
    """A call that cannot be handed to a tool.

    name   of the tool, None where there is none
    error  why
    begun  whether pieces of it have gone out
    """

    name: str | None
    error: str
    begun: bool = False


@dataclass(slots=True)
class _Parameter:
    """The parameter that is being written.

    form  streamed: its text goes out as it comes
          held: its value goes out when it is closed
          wrapper: it may hold all arguments, which is known when something follows it
          repeated: its value does not count
    """

    name: str
    is_text: bool
    form: str
    pieces: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class CallWriter:
    """Writes one call of the tool `name`, whose arguments have the schema `schema`.

    parameters  what the schema says of them
    """

    def __init__(self, name: str, schema: Any) -> None:
        self.name = name
        self.parameters = ToolParameters(schema)
        self._begun = False
        self._names: set[str] = set()
        self._keys = 0
        self._parameter: _Parameter | None = None
        self._wrapper: _Parameter | None = None

    def open(self, name: str, *, is_text: bool | None) -> Iterator[CallPiece]:
        """Begin a parameter, and end the one before.

        is_text  whether its text itself is its value; None: the model does not say so
        """
        yield from self.close_value()
        if self._wrapper is not None and name not in self._names:
            yield self._member(self._wrapper)
            self._wrapper = None
        schema = self.parameters.schema(name)
        if is_text is None:
            is_text = isinstance(schema, dict) and schema.get("type") in ("string", ["string"])
        self._parameter = _Parameter(name, is_text, self._form(name, schema, is_text=is_text))
        if self._parameter.form == "streamed":
            yield self._piece(self._key(name) + '"')
        elif self._parameter.form == "held" and not self._begun:
            yield self._piece("")
        self._names.add(name)

    def add(self, text: str) -> Iterator[CallPiece]:
        """Take more text of the parameter that is open."""
        parameter = self._parameter
        if parameter is None:
            return
        if parameter.form == "streamed":
            yield self._piece(quoted(text)[1:-1])
        else:
            parameter.pieces.append(text)

    def close_value(self) -> Iterator[CallPiece]:
        """End the parameter that is open, if one is."""
        parameter, self._parameter = self._parameter, None
        match parameter:
            case _Parameter(form="streamed"):
                yield self._piece('"')
            case _Parameter(form="held"):
                yield self._member(parameter)
            case _Parameter(form="wrapper"):
                self._wrapper = parameter
            case _:
                pass

    def close(self, body: str) -> Iterator[CallPiece | InvalidCall]:
        """End the call.

        body  its text outside of parameters, which counts where there are none
        """
        yield from self.close_value()
        body = body.strip()
        if self._wrapper is not None:
            yield self._piece(self._of_wrapper(self._wrapper), ended=True)
        elif self._keys or not body:
            yield self._piece("}" if self._keys else "{}", ended=True)
        elif (found := self._of_body(body)) is not None:
            yield self._piece(found, ended=True)
        else:
            yield self.invalid("the call's body is no JSON object")

    def invalid(self, error: str) -> InvalidCall:
        """Return what there is to say of this call if it cannot become whole."""
        return InvalidCall(self.name, error, self._begun)

    def _form(self, name: str, schema: Any, *, is_text: bool) -> str:
        if name in self._names:
            return "repeated"
        if not self._keys and self._is_wrapper(name):
            return "wrapper"
        return "streamed" if is_text and is_certain_text(schema, self.parameters.root) else "held"

    def _is_wrapper(self, name: str) -> bool:
        return name in _WRAPPERS and name not in self.parameters.named

    def _piece(self, arguments: str, *, ended: bool = False) -> CallPiece:
        name, self._begun = None if self._begun else self.name, True
        return CallPiece(name, arguments, ended)

    def _key(self, name: str) -> str:
        self._keys += 1
        return f"{'{' if self._keys == 1 else ', '}{quoted(name)}: "

    def _member(self, parameter: _Parameter) -> CallPiece:
        return self._piece(self._key(parameter.name) + self._value(parameter))

    def _value(self, parameter: _Parameter) -> str:
        root, schema = self.parameters.root, self.parameters.schema(parameter.name)
        return argument_json(parameter.text, schema, root=root, is_text=parameter.is_text)

    def _of_wrapper(self, wrapper: _Parameter) -> str:
        """Return the arguments that were written in one parameter."""
        value = self._value(wrapper)
        return self._unwrapped(value) or written_object([(wrapper.name, value)])

    def _of_body(self, body: str, *, may_wrap: bool = True) -> str | None:
        """Return the arguments of a body that is a JSON object, else None."""
        if not isinstance(_decoded(body), dict):
            return None
        members = raw_members(body)
        [only] = members if len(members) == 1 and may_wrap else [None]
        inside = None
        if only is not None and self._is_wrapper(only):
            inside = self._unwrapped(members[only], may_wrap=False)
        return inside or self._fitted_members(body, members)

    def _unwrapped(self, value: str, *, may_wrap: bool = True) -> str | None:
        """Return the arguments that the JSON value of a wrapper holds, None if it holds none.

        may_wrap  whether there may be one more wrapper in it
        """
        found = _decoded(value)
        if isinstance(found, str) and isinstance(_decoded(found), dict):
            value, found = found, _decoded(found)
        if isinstance(found, dict):
            return self._of_body(value.strip(), may_wrap=may_wrap)
        if found is None or found == "":
            return "{}"
        name, root = self.parameters.only, self.parameters.root
        if name is None:
            return None
        schema = self.parameters.schema(name)
        certain = isinstance(found, str) and is_certain_text(schema, root)
        reading = value if certain else fitted(value, schema, root=root)
        return None if reading is None else written_object([(name, reading)])

    def _fitted_members(self, text: str, members: dict[str, str]) -> str:
        """Return a JSON object whose members fit their schemas; as it is, if they do already."""
        root, schema = self.parameters.root, self.parameters.schema
        read = {k: fitted(part, schema(k), root=root) or part for k, part in members.items()}
        return text if read == members else written_object(read.items())


def _decoded(text: str) -> Any:
    return msgspec.json.decode(text.encode()) if is_json(text) else None
