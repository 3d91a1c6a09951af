"""The blocks that messages of `/v1/messages` are made of, as clients send them.

Fields that are not here are ignored, `cache_control` among them: every prompt is cached as far as
there is room, without being asked. Blocks of other types are refused.
"""

from typing import Any, Literal

import msgspec


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought; see `runtime.server.messages_thinking`."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Thinking that only the server it comes from can read; it is left out of the prompt."""

    data: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_result"):
    """What a tool answered.

    V4's format has no sign for a failure: that it failed has to be said in `content`.
    """

    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


class Message(msgspec.Struct, frozen=True):
    """One message; the system prompt itself is apart from them."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    @property
    def blocks(self) -> list[Block]:
        """The content as blocks."""
        return [TextBlock(self.content)] if isinstance(self.content, str) else self.content
