"""Tests of runtime.server.chat_reply: deltas and messages of one choice."""

from typing import Any

import pytest

from runtime.chat.answer_parser import AnswerParser
from runtime.chat.marks import DSML, THINK_END
from runtime.server.chat_reply import ChoiceReply
from runtime.tokenizer.choice import Finish

INVOKE = '<@invoke name="{}"></@invoke>'
STOP, LENGTH = Finish("stop", matched=1), Finish("length")


def reply(*, hold_reasoning: bool = False, hold_calls: bool = False) -> ChoiceReply:
    parser = AnswerParser(reasoning=True, tools={"f": None})
    return ChoiceReply(parser, hold_reasoning=hold_reasoning, hold_calls=hold_calls)


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


PARAMETER = '<@parameter name="s" string="true">'


def test_a_call_comes_in_pieces_or_is_held_until_it_is_whole() -> None:
    pieces = [")", '<@invoke name="f">', PARAMETER, 'a"', "b</", "@parameter>", "</@invoke>"]

    told, held = reply(), reply(hold_calls=True)
    deltas, whole = fed(told, *pieces), fed(held, *pieces)

    calls = [delta["tool_calls"][0] for delta in deltas]
    assert [sorted(call) for call in calls] == [
        ["function", "id", "index", "type"], *[["function", "index"]] * (len(calls) - 1),
    ]  # fmt: skip
    assert calls[0]["function"] == {"name": "f", "arguments": '{"s": "'}
    said = [call["function"]["arguments"] for call in calls]
    assert said == ['{"s": "', 'a\\"', "b", '"', "}"]
    [call] = held.tool_calls
    assert [{"tool_calls": [call]}] == whole
    assert call["function"] == {"name": "f", "arguments": "".join(said)}
    assert told.message()["tool_calls"][0]["function"] == call["function"]


@pytest.mark.parametrize("hold_calls", [False, True])
def test_a_call_that_breaks_off_is_none_of_the_message_and_known_by_its_id(
    hold_calls: bool,
) -> None:
    told = reply(hold_calls=hold_calls)

    deltas = fed(told, ")" + INVOKE.format("f"), '<@invoke name="f">' + PARAMETER, "a")

    [call] = told.message()["tool_calls"]
    [invalid] = told.message()["invalid_tool_calls"]
    assert ("id" in invalid) == (not hold_calls)
    assert deltas[-1] == {"invalid_tool_calls": [invalid]}
    begun = [d["tool_calls"][0]["id"] for d in deltas if "id" in d.get("tool_calls", [{}])[0]]
    assert begun == [call["id"], *([] if hold_calls else [invalid["id"]])]
    assert told.finish_fields(STOP)["finish_reason"] == "stop"
    assert told.finish_fields(LENGTH)["finish_reason"] == "length"


def test_ids_of_calls_begin_as_asked() -> None:
    told = ChoiceReply(AnswerParser(reasoning=False, tools={"f": None}), call_prefix="toolu_")
    fed(told, INVOKE.format("f"))

    assert told.tool_calls[0]["id"].startswith("toolu_")


def test_calls_that_come_at_once_are_whole_and_numbered() -> None:
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
