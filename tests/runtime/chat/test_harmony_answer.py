"""Tests of runtime.chat.harmony_answer: messages of an answer in harmony's format."""

from typing import Any

import pytest

from runtime.chat.answer_parser import Text
from runtime.chat.call_writer import CallPiece, InvalidCall
from tests.runtime.chat.families import marked, parsed

WHOLE = CallPiece("get_weather", '{"city": "Oslo"}', True)
ANSWERS: dict[str, tuple[str, str, list[Any]]] = {
    "a preamble and a call": (
        "gpt_oss",
        "<|channel|>commentary<|message|>let me see<|end|><|start|>assistant "
        "to=functions.get_weather"
        '<|channel|>commentary<|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
        [Text("content", "let me see"), WHOLE],
    ),
    "harmony without any mark": ("gpt_oss", "hello", [Text("content", "hello")]),
    "a harmony call that is no JSON": (
        "gpt_oss",
        "<|channel|>commentary to=functions.noop<|message|>now<|call|>",
        [Text("content", "now")],
    ),
    "a browser that is not there": (
        "gpt_oss",
        '<|channel|>analysis to=browser.open<|message|>{"id": 1}<|call|>',
        [InvalidCall("browser.open", "there is no such tool")],
    ),
    "an answer cut amid a call": (
        "gpt_oss",
        '<|channel|>commentary to=functions.get_weather<|message|>{"city": "O',
        [
            CallPiece("get_weather", '{"city": "O'),
            InvalidCall("get_weather", "the answer ended inside this call", begun=True),
        ],
    ),
    "a message whose start is left out": (
        "gpt_oss",
        "<|channel|>analysis<|message|>hm<|channel|>final<|message|>so",
        [Text("reasoning", "hm"), Text("content", "so")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_answers_are_read_in_whatever_pieces(case: str) -> None:
    name, text, expected = ANSWERS[case]
    text = marked(name, text)

    assert parsed(name, [text]) == expected
    for cut in range(len(text)):
        assert parsed(name, [text[:cut], text[cut:]]) == expected
    assert parsed(name, list(text)) == expected


def test_an_answer_may_begin_inside_its_final_message() -> None:
    assert parsed("gpt_oss", ["so"], opened=True) == [Text("content", "so")]


def test_calls_are_content_where_there_are_no_tools() -> None:
    text = marked("gpt_oss", "<|channel|>commentary to=functions.f<|message|>{}")

    assert parsed("gpt_oss", list(text), tools=None) == [Text("content", "{}")]
