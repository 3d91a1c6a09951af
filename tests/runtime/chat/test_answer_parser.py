"""Reasoning, content and calls of an answer, where the round trip does not reach."""

import pytest

from runtime.chat.answer_parser import AnswerParser, Part, Text
from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat.marks import DSML, THINK, THINK_END

BLOCK = '\n\n<@tool_calls>\n<@invoke name="f">\n</@invoke>\n</@tool_calls>'
CALL = CallPiece("f", "{}", ended=True)


def parsed(
    text: str,
    *,
    reasoning: bool = True,
    tools: bool = True,
    parallel: bool = True,
    separate: bool = True,
) -> list[Part]:
    """Parse a whole answer; "@", "(" and ")" stand for the marks."""
    parser = AnswerParser(
        reasoning=reasoning,
        tools={"f": None} if tools else None,
        parallel=parallel,
        separate=separate,
    )
    text = text.replace("@", DSML).replace("(", THINK).replace(")", THINK_END)
    whole = parser.push(text)
    return whole + parser.finish()


def say(text: str) -> Text:
    return Text("content", text)


def think(text: str) -> Text:
    return Text("reasoning", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r)c", [think("r"), say("c")]),
        ("(r)c", [think("r"), say("c")]),
        ("r)c)d", [think("r"), say("c"), say("d")]),
        ("r)c(s)d", [think("r"), say("c"), think("s"), say("d")]),
        ("r", [think("r")]),
        (")", []),
        ("r)c" + BLOCK, [think("r"), say("c"), CALL]),
        ("r" + BLOCK, [think("r"), CALL]),
        ("r)\n" + BLOCK, [think("r"), say("\n"), CALL]),
        ("r)c" + BLOCK + "after", [think("r"), say("c"), CALL]),
        ("r)c" + BLOCK + BLOCK, [think("r"), say("c"), CALL, CALL]),
        ("r)a@b", [think("r"), say("ab")]),
        ("r)a</@invoke>b", [think("r"), say("a"), say("b")]),
        ("r)a\n\n<", [think("r"), say("a"), say("\n\n<")]),
        ("r\n)a", [think("r"), think("\n"), say("a")]),
    ],
)
def test_an_answer_has_these_parts(text: str, expected: list[Part]) -> None:
    assert joined(parsed(text)) == joined(expected)


def joined(parts: list[Part]) -> list[Part]:
    """Return parts with neighbouring texts of one channel as one."""
    whole: list[Part] = []
    for part in parts:
        last = whole[-1] if whole else None
        if isinstance(part, Text) and isinstance(last, Text) and last.channel == part.channel:
            whole[-1] = Text(part.channel, last.text + part.text)
        else:
            whole.append(part)
    return whole


def test_quoted_control_tokens_are_text() -> None:
    assert parsed("</think>｜DSML｜") == [think("</think>｜DSML｜")]


def test_without_tools_markup_is_content_as_it_was_written() -> None:
    parts = joined(parsed("r)c" + BLOCK, tools=False))

    assert parts == [think("r"), say("c" + BLOCK.replace("@", "｜DSML｜"))]


def test_unseparated_reasoning_is_content_with_its_end() -> None:
    assert joined(parsed("r)c" + BLOCK, separate=False)) == [say("r</think>c"), CALL]
    assert joined(parsed("c(r)d", reasoning=False, separate=False)) == [say("c<think>r</think>d")]


def test_one_call_at_a_time_leaves_out_the_others() -> None:
    parts = parsed(")" + BLOCK + BLOCK, parallel=False)

    assert parts == [CALL, InvalidCall("f", "parallel_tool_calls is false")]


NAMELESS = '<@invoke name="f"><@parameter name="s" string="true">a<@parameter></@invoke>'


def test_a_call_that_is_left_out_is_told_once() -> None:
    call, *invalid = parsed(")" + BLOCK + NAMELESS, parallel=False)

    assert (call, invalid) == (CALL, [InvalidCall("f", "parallel_tool_calls is false")])


def test_a_call_that_broke_off_leaves_room_for_another_one() -> None:
    begun, invalid, call = parsed(")" + NAMELESS + BLOCK, parallel=False)

    assert begun == CallPiece("f", '{"s": "a"')
    assert invalid == InvalidCall("f", "a parameter has no name", begun=True)
    assert call == CALL


def test_text_goes_out_as_soon_as_it_cannot_be_markup() -> None:
    parser = AnswerParser(reasoning=False, tools={"f": None})

    assert parser.push("a\n\n") == [say("a")]
    assert parser.push("b<") == [say("\n\nb")]
    assert parser.push("c") == [say("<c")]
    assert parser.push("\n\n<" + DSML) == []
    assert parser.push('invoke name="f"/>') == [CALL]


def test_nothing_is_held_back_without_tools() -> None:
    assert AnswerParser(reasoning=False, tools=None).push("a\n\n<") == [say("a\n\n<")]


def test_a_call_that_was_cut_off_is_told_at_the_end() -> None:
    [part] = parsed(')<@invoke name="f">')

    assert isinstance(part, InvalidCall)
