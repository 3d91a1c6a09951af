"""Tests of runtime.server.messages_reply: events of blocks, and how an answer ended."""

from typing import Any

import msgspec
import pytest

from runtime.errors import Aborted
from runtime.server.messages_reply import BlockEvents, assembled, message_usage, stop_fields
from runtime.server.messages_thinking import recall
from runtime.server.runs import Tally
from runtime.tokenizer.choice import Finish

DELTAS: list[dict[str, Any]] = [
    {"reasoning_content": "w"},
    {"reasoning_content": "hy"},
    {"content": "s"},
    {"content": "o"},
    {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": 1.0}'}}]},
    {"tool_calls": [{"id": "2", "function": {"name": "g", "arguments": "{}"}}]},
    {"invalid_tool_calls": []},
]


def events(*, omit_thinking: bool = False) -> list[dict[str, Any]]:
    blocks = BlockEvents("sig", omit_thinking=omit_thinking)
    return [*blocks.add(DELTAS), *blocks.end()]


def test_each_block_is_opened_filled_and_closed_before_the_next() -> None:
    told = events()

    assert [(e["type"], e["index"]) for e in told] == [
        *[("content_block_start", 0), *[("content_block_delta", 0)] * 3, ("content_block_stop", 0)],
        *[("content_block_start", 1), *[("content_block_delta", 1)] * 2, ("content_block_stop", 1)],
        *[("content_block_start", 2), ("content_block_delta", 2), ("content_block_stop", 2)],
        *[("content_block_start", 3), ("content_block_delta", 3), ("content_block_stop", 3)],
    ]
    assert [e["delta"]["type"] for e in told if "delta" in e] == [
        *["thinking_delta", "thinking_delta", "signature_delta", "text_delta", "text_delta"],
        *["input_json_delta", "input_json_delta"],
    ]
    assert told[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}


def test_the_whole_content_is_what_the_events_make() -> None:
    content = msgspec.json.decode(msgspec.json.encode(assembled(events())))

    assert content == [
        {"type": "thinking", "thinking": "why", "signature": "sig"},
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1.0}},
        {"type": "tool_use", "id": "2", "name": "g", "input": {}},
    ]


def test_the_pieces_of_a_call_fill_one_block() -> None:
    blocks = BlockEvents("sig", omit_thinking=False)
    pieces: list[dict[str, Any]] = [
        {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"function": {"arguments": '{"x": '}}]},
        {"tool_calls": [{"function": {"arguments": "1}"}}]},
    ]

    told = [*blocks.add(pieces), *blocks.end()]

    assert [e["type"].removeprefix("content_block_") for e in told] == [
        "start", "delta", "delta", "stop",
    ]  # fmt: skip
    [block] = msgspec.json.decode(msgspec.json.encode(assembled(told)))
    assert block == {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}


def test_omitted_thinking_is_in_its_signature() -> None:
    [thinking, *_] = assembled(events(omit_thinking=True))

    assert thinking["thinking"] == ""
    assert recall("", thinking["signature"]) == "why"


def test_an_answer_without_anything_has_no_blocks() -> None:
    assert list(BlockEvents("sig", omit_thinking=False).end()) == []


def test_input_tokens_are_those_that_were_not_in_the_cache() -> None:
    tally = Tally(prompt_tokens=10, cached_tokens=7, completion_tokens=3)

    usage = message_usage(tally)
    tally.reasoning_tokens = 2

    assert usage == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 7,
        "output_tokens": 3,
    }
    assert message_usage(tally)["output_tokens_details"] == {"thinking_tokens": 2}


@pytest.mark.parametrize(
    ("finish", "calls", "within", "expected"),
    [
        (Finish("stop", matched=1), False, True, ("end_turn", None)),
        (Finish("stop", matched=1), True, True, ("tool_use", None)),
        (Finish("stop", matched="end"), True, True, ("stop_sequence", "end")),
        (Finish("length"), True, False, ("max_tokens", None)),
        (Finish("length"), False, True, ("model_context_window_exceeded", None)),
    ],
)
def test_why_an_answer_ended(
    finish: Finish, calls: bool, within: bool, expected: tuple[str, str | None]
) -> None:
    fields = stop_fields(finish, calls=calls, within_limit=within)

    assert (fields["stop_reason"], fields["stop_sequence"]) == expected


def test_an_aborted_answer_is_an_error() -> None:
    with pytest.raises(Aborted, match="bye"):
        stop_fields(Finish("abort", message="bye"), calls=False, within_limit=True)
