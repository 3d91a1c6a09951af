"""The arguments of one call whose format has them as a JSON object, handed on as they come.

What goes out is what the model wrote, but for the closing brace, which is held back until the
object is whole and valid: the arguments of a call that was cut off never become JSON.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from runtime.chat.call_values import is_json
from runtime.chat.call_writer import CallPiece, InvalidCall

_NO_OBJECT = "the call's arguments are no JSON object"


class JsonArguments:
    """Writes the arguments of one call of the tool `name`.

    begun  whether a piece has gone out
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun = False
        self._pieces: list[str] = []
        self._brace = ""

    @staticmethod
    def may_begin(char: str) -> bool:
        """Whether arguments may begin so: as an object, a string that holds one, or null."""
        return char in '{"n'

    def add(self, text: str) -> Iterator[CallPiece]:
        """Take more of the value's text; yield what of it is certain."""
        self._pieces.append(text)
        if not self._pieces[0].startswith("{"):
            return
        text = self._brace + text
        self._brace = "}" if text.endswith("}") else ""
        text = text.removesuffix("}")
        if text:
            yield self._piece(text)

    def close(self) -> CallPiece | InvalidCall:
        """End the call, whose value is whole; without any text it has no arguments."""
        whole = "".join(self._pieces)
        found = _decoded(whole)
        if isinstance(found, str):
            whole, found = found, _decoded(found)
        if isinstance(found, dict):
            return self._piece(self._brace if self.begun else whole, ended=True)
        if found is None and whole in ("", "null"):
            return self._piece("{}", ended=True)
        return InvalidCall(self.name, _NO_OBJECT, self.begun)

    def invalid(self, error: str) -> InvalidCall:
        """Return what there is to say of a call that cannot become whole."""
        return InvalidCall(self.name, error, self.begun)

    def _piece(self, text: str, *, ended: bool = False) -> CallPiece:
        name, self.begun = None if self.begun else self.name, True
        return CallPiece(name, text, ended)


def _decoded(text: str) -> Any:
    return msgspec.json.decode(text.encode()) if is_json(text) else None
