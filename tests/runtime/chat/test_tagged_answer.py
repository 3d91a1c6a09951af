"""Tests of runtime.chat.tagged_answer: what belongs to no channel, and what is held back."""

from runtime.chat.answer_parser import Text
from tests.runtime.chat.families import TOOLS, family_format, marked, parsed


def test_line_ends_around_reasoning_belong_to_no_channel() -> None:
    text = marked("qwen3", "<think>\n\na\n\n</think>\n\n\nb\n")

    assert parsed("qwen3", list(text)) == [Text("reasoning", "\na\n"), Text("content", "\nb\n")]


def test_reasoning_that_is_content_keeps_its_marks() -> None:
    text = marked("qwen3", "<think>\na\n</think>\n\nb")

    parts = parsed("qwen3", list(text), separate=False)

    assert parts == [Text("content", "<think>\na\n</think>\n\nb")]


def test_reasoning_that_the_prompt_has_opened_needs_no_mark() -> None:
    text = marked("qwen3", "\na</think>b")

    assert parsed("qwen3", list(text), reasoning=True) == [
        Text("reasoning", "a"),
        Text("content", "b"),
    ]


def test_marks_that_change_nothing_are_dropped() -> None:
    text = marked("qwen3", "a</think>b<think><think>c")

    assert parsed("qwen3", list(text)) == [Text("content", "ab"), Text("reasoning", "c")]


def test_only_a_tokens_own_mark_counts() -> None:
    assert parsed("qwen3", ["a <think> b"]) == [Text("content", "a <think> b")]
    assert parsed("qwen3", ["<tool_call>"]) == [Text("content", "<tool_call>")]


def test_text_goes_out_as_soon_as_it_can_be_no_mark() -> None:
    parser = family_format("smol").parser(reasoning=False, tools=TOOLS)

    assert parser.push("so\n") == [Text("content", "so")]
    assert parser.push("<tool") == []
    assert parser.push("s") == [Text("content", "\n<tools")]
