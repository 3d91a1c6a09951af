"""Tests of runtime.chat.json_call: how far one call goes, and when it is certain."""

import pytest

from runtime.chat.answer_formats import DEEPSEEK_V31, HERMES, LLAMA, OPEN, SEP
from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat.json_call import JsonCall
from runtime.chat.mark_lexer import Lexeme

CALL = '{"name": "f", "arguments": {"a": "}"}}'


def test_a_call_ends_with_its_object() -> None:
    call = JsonCall(HERMES, ["f"])

    parts, used = call.take(Lexeme(f"\n{CALL} rest"))

    assert "".join(part.arguments for part in parts if isinstance(part, CallPiece)) == '{"a": "}"}'
    assert used == 1 + len(CALL)
    assert call.state == "ended"


def test_a_call_is_certain_with_its_name_and_the_first_of_its_arguments() -> None:
    call = JsonCall(HERMES, ["f"])

    for char in CALL[: CALL.index("{", 1)]:
        assert call.take(Lexeme(char)) == ([], 1)
        assert call.state == "undecided"
    assert call.take(Lexeme("{")) == ([CallPiece("f", "{")], 1)
    assert call.state == "call"


@pytest.mark.parametrize("text", ["x", "[", '{"name" 1', '{"name": 1}', "{}", '{"a": 1}', '{"', ""])
def test_what_is_no_call_is_text(text: str) -> None:
    call = JsonCall(HERMES, ["f"])

    assert call.take(Lexeme(text))[0] == []
    assert call.finish() == []
    assert call.state == "text"


def test_members_that_no_call_has_make_a_bare_object_text_at_once() -> None:
    call = JsonCall(LLAMA, ["f"], bare=True)

    call.take(Lexeme('{"city"'))

    assert call.state == "text"


def test_a_name_before_the_object_is_read_with_its_marks() -> None:
    call = JsonCall(DEEPSEEK_V31, ["f"])

    call.take(Lexeme("f"))
    call.take(Lexeme(SEP, SEP))

    assert call.take(Lexeme("{}")) == (
        [CallPiece("f", "{"), CallPiece(None, "}", ended=True)],
        2,
    )


def test_a_mark_inside_a_string_is_its_spelling() -> None:
    call = JsonCall(HERMES, ["f"], name="f")
    call.take(Lexeme('{"a": "'))

    parts, used = call.take(Lexeme(OPEN, OPEN))

    assert (parts, used) == ([CallPiece(None, "<tool_call>")], 1)


def test_any_other_mark_ends_the_call() -> None:
    call = JsonCall(HERMES, ["f"], name="f")
    call.take(Lexeme('{"a": '))

    parts, used = call.take(Lexeme(OPEN, OPEN))

    assert used == 0
    assert parts == [InvalidCall("f", "a mark stands inside the call", begun=True)]
