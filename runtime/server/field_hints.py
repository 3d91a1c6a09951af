"""Body fields of other servers' dialects: what to give instead, or why nothing does the same.

A body class lists the fields that it does not have but clients know from elsewhere. A request that
gives one is refused with its hint, unless the value asks for what is done anyway. A field that no
list has is ignored, as OpenAI-compatible servers do.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from runtime.errors import BadRequest

# Values that ask for nothing, unless a hint says otherwise. False equals 0 here, and True 1.
OFF: tuple[Any, ...] = (False, "", [], {})
# JSON of more bytes is none of the values that are the same; what it is does not matter.
_LONGEST_SAME = 1 << 12
_LONG = object()


@dataclass(frozen=True, slots=True)
class FieldHint:
    """What to answer to a group of fields.

    names  separated by blanks; `a.b` is field b of the object, or of each object, in a
    text   what to give instead, or why nothing does the same
    same   values that ask for what is done anyway; null always does
    """

    names: str
    text: str
    same: tuple[Any, ...] = OFF


class FieldHints:
    """The hints on one body. Where two groups name a field, the later one counts.

    names  the fields of the body itself, without those of objects in it
    """

    def __init__(self, *groups: Iterable[FieldHint]) -> None:
        self._hints = {name: hint for group in groups for hint in group for name in _names(hint)}
        self.names = tuple(name for name in self._hints if "." not in name)

    def text(self, name: str) -> str:
        """Return `: hint` for a field, "" where there is nothing to say."""
        hint = self._hints.get(name)
        return "" if hint is None else f": {hint.text}"

    def refuse(self, name: str, value: Any) -> None:
        """Raise BadRequest where `value` asks for something that field `name` means elsewhere."""
        hint = self._hints[name]
        if value is not None and value not in hint.same:
            text = f"{name} is not supported: {hint.text}"
            raise BadRequest(text, param=name, code="not_supported")

    def refuse_any(self, body: bytes) -> None:
        """Raise BadRequest for the first field of a JSON object that asks for something."""
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        for name, value in given.items():
            if name in self._hints and "." not in name:
                short = len(bytes(value)) < _LONGEST_SAME
                self.refuse(name, msgspec.json.decode(value) if short else _LONG)


class HintedBody(msgspec.Struct, frozen=True):
    """A body that knows fields of other servers."""

    elsewhere: ClassVar[FieldHints] = FieldHints()


def hints_of(shape: type[msgspec.Struct]) -> FieldHints:
    """Return the hints on a body; none for a class that is no HintedBody."""
    return shape.elsewhere if issubclass(shape, HintedBody) else HintedBody.elsewhere


def _names(hint: FieldHint) -> list[str]:
    return hint.names.split()
