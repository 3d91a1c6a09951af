"""The items that the input and the output of `/v1/responses` are made of.

An item's `type` may be missing, and items of many types are sent to servers that have more tools.
So all items are read as one record, and what its type does not allow is refused by name.
"""

import msgspec

from runtime.errors import BadRequest
from runtime.server.messages_thinking import recall

_TEXTS = ("input_text", "output_text", "text")
ROLES = ("user", "assistant", "system", "developer")


class ItemPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of an item's content."""

    type: str
    text: str | None = None


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of a conversation; which fields it has depends on its type.

    role, content      of a message; `content` of a reasoning item is the reasoning
    call_id, name, arguments   of a function_call; `namespace` if its function is in one
    call_id, name, input       of a custom_tool_call
    call_id, output    of a function_call_output and a custom_tool_call_output
    encrypted_content  the reasoning again, for clients that keep no other field
    status             incomplete: the item was cut off
    """

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ItemPart] | None = None
    summary: list[ItemPart] | None = None
    encrypted_content: str | None = None
    status: str | None = None

    @property
    def kind(self) -> str:
        """The item's type; items without one are messages or references."""
        if self.type is not None:
            return self.type
        return "item_reference" if self.id is not None and self.role is None else "message"

    def reasoning(self, where: str) -> str:
        """Return the text of a reasoning item; a summary is none. Raises BadRequest."""
        for part in self.content if isinstance(self.content, list) else ():
            if part.type != "reasoning_text":
                raise unsupported(f"{where}.content", part.type)
        text = self.content if isinstance(self.content, str) else _joined(self.content)
        try:
            return recall(text, self.encrypted_content)
        except BadRequest as fault:
            fault_text = f"{where}.encrypted_content is not as this server wrote it"
            raise BadRequest(fault_text, param="input") from fault


def texts(content: str | list[ItemPart] | None, where: str) -> list[str]:
    """Return the texts of a message or a result. Raises BadRequest for any other part."""
    if content is None:
        raise BadRequest(f"{where} is missing", param="input")
    if isinstance(content, str):
        return [content]
    for number, part in enumerate(content):
        if part.type not in _TEXTS:
            raise unsupported(f"{where}[{number}]", part.type)
        if part.text is None:
            raise BadRequest(f"{where}[{number}].text is missing", param="input")
    return [part.text or "" for part in content]


def unsupported(where: str, kind: str) -> BadRequest:
    """Return the refusal of an item or a part of a type that is not read."""
    text = f"{where}: the type {kind[:80]!r} is not supported"
    return BadRequest(text, param="input", code="not_supported")


def _joined(parts: list[ItemPart] | None) -> str:
    return "".join(part.text or "" for part in parts or ())
