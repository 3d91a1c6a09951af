"""Tests of runtime.server.chat_reply: deltas and messages of one choice."""

from typing import Any

import pytest

from runtime.chat.answer_parser import AnswerParser
from runtime.chat.marks import DSML, THINK_END
from runtime.server.chat_reply import ChoiceReply
from runtime.tokenizer.choice import Finish

INVOKE = '<@invoke name="{}"></@invoke>'
STOP, LENGTH = Finish("stop", matched=1), Finish("length")


def reply(*, hold_reasoning: bool = False) -> ChoiceReply:
    parser = AnswerParser(reasoning=True, tools={"f": None})
    return ChoiceReply(parser, hold_reasoning=hold_reasoning)


def fed(told: ChoiceReply, *pieces: str) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    for k, piece in enumerate(pieces):
        text = piece.replace("@", DSML).replace(")", THINK_END)
        deltas += told.feed(text, ended=k == len(pieces) - 1)
    return deltas


def test_reasoning_then_content_come_as_they_are() -> None:
    told = reply()

    assert fed(told, "r", "s)c", "d") == [
        {"reasoning_content": "r"},
        {"reasoning_content": "s"},
        {"content": "c"},
        {"content": "d"},
    ]
    assert told.message() == {
        "role": "assistant", "content": "cd", "refusal": None, "reasoning_content": "rs",
    }  # fmt: skip
    assert told.finish_fields(STOP)["finish_reason"] == "stop"


def test_held_reasoning_comes_whole_with_what_follows_it() -> None:
    told = reply(hold_reasoning=True)

    assert fed(told, "r", "s)", "c") == [{"reasoning_content": "rs", "content": "c"}]
    assert fed(reply(hold_reasoning=True), "r", "s") == [{"reasoning_content": "rs"}]


def test_calls_come_whole_and_numbered() -> None:
    told = reply()

    deltas = fed(told, "r)", INVOKE.format("f"), INVOKE.format("f"))

    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert [call["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    assert {call["function"]["arguments"] for call in calls} == {"{}"}
    message = told.message()
    assert message["content"] is None
    assert [call["id"] for call in message["tool_calls"]] == [call["id"] for call in calls]
    assert "index" not in message["tool_calls"][0]


@pytest.mark.parametrize(("finish", "reason"), [(STOP, "tool_calls"), (LENGTH, "length")])
def test_an_answer_with_calls_ends_as_it_ended(finish: Finish, reason: str) -> None:
    told = reply()
    fed(told, ")" + INVOKE.format("f"))

    assert told.finish_fields(finish)["finish_reason"] == reason


def test_invalid_calls_are_told_at_the_end_and_are_no_calls() -> None:
    told = reply()

    deltas = fed(told, ")" + INVOKE.format("g"), '<@invoke name="f">')

    errors = [
        {"name": "g", "error": "there is no such tool"},
        {"name": "f", "error": "the answer ended inside this call"},
    ]
    assert deltas == [{"invalid_tool_calls": errors}]
    assert told.message()["invalid_tool_calls"] == errors
    assert "tool_calls" not in told.message()
    assert told.finish_fields(STOP)["finish_reason"] == "stop"
