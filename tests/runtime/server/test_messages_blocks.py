"""Tests of runtime.server.messages_blocks: what a message may be made of."""

from typing import Any

import msgspec
import pytest

from runtime.server.messages_blocks import Message, TextBlock, ThinkingBlock, ToolResultBlock


def test_a_text_is_one_block() -> None:
    assert Message("user", "hi").blocks == [TextBlock("hi")]


def test_blocks_are_told_apart_by_their_type_and_cache_control_is_ignored() -> None:
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "why", "signature": "s"},
        {"type": "text", "text": "so", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]},
    ]

    message = msgspec.convert({"role": "user", "content": content}, Message)

    assert message.blocks == [
        ThinkingBlock("why", "s"),
        TextBlock("so"),
        ToolResultBlock("1", [TextBlock("r")]),
    ]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "url", "url": "http://x"}},
        {"type": "document", "source": {"type": "text", "data": "x"}},
        {"type": "redacted_thinking"},
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]},
        {"type": "text"},
        {"text": "x"},
    ],
)
def test_other_blocks_are_refused(block: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"content\[0\]"):
        msgspec.convert({"role": "user", "content": [block]}, Message)
