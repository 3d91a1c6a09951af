"""Calls as models were seen to write them, each defect of other parsers among them."""

import json
import re

import pytest

from runtime.chat.call_writer import CallPiece, InvalidCall
from runtime.chat.dsml import CallPart, ToolCallBlock

TOOLS = {
    "f": {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "s": {"type": "string"}, "u": {}},
    },
    "g": {"type": "object", "properties": {"input": {"type": "object"}}},
    "plain": None,
    "behind": {"$ref": "#/$defs/G", "$defs": {"G": {"properties": {"input": {"type": "string"}}}}},
    "either": {"type": "object", "oneOf": [{}], "properties": {"input": {}}},
    "only named": {"required": ["input"], "additionalProperties": {"type": "object"}},
}


def pieces(text: str, *, ended: bool = True) -> list[CallPart]:
    """Parse a block; "@" stands for the mark."""
    block = ToolCallBlock(TOOLS)
    found: list[CallPart] = []
    assert text.startswith("<@")
    for run in re.split("(@)", text[2:]):
        found += block.mark() if run == "@" else block.text(run) if run else ()
    return [*found, *block.finish()] if ended else found


def read(text: str, *, ended: bool = True) -> list[CallPart]:
    """Parse a block; return its calls with the pieces of each as one."""
    calls: list[CallPart] = []
    for part in pieces(text, ended=ended):
        if isinstance(part, CallPiece) and part.name is None:
            begun = calls[-1]
            assert isinstance(begun, CallPiece)
            calls[-1] = CallPiece(begun.name, begun.arguments + part.arguments, part.ended)
        else:
            calls.append(part)
    return calls


def one(text: str) -> tuple[str | None, object]:
    """Return the single call of a block, its arguments decoded."""
    [call] = read(text)
    assert isinstance(call, CallPiece), call
    assert call.ended
    return call.name, json.loads(call.arguments)


def whole(name: str, arguments: str) -> CallPiece:
    return CallPiece(name, arguments, ended=True)


def invoke(inside: str, name: str = "f") -> str:
    return f'<@tool_calls>\n<@invoke name="{name}">{inside}</@invoke>\n</@tool_calls>'


def parameter(name: str, value: str, kind: str = ' string="false"') -> str:
    return f'\n<@parameter name="{name}"{kind}>{value}</@parameter>\n'


def test_the_published_form_is_read() -> None:
    text = invoke(parameter("x", "1") + parameter("s", "a b", ' string="true"'))

    assert read(text) == [whole("f", '{"x": 1, "s": "a b"}')]


def test_numbers_keep_their_spelling() -> None:
    assert read(invoke(parameter("u", "1.50e3"))) == [whole("f", '{"u": 1.50e3}')]


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (parameter("x", "7", ""), {"x": 7}),
        (parameter("s", "7", ""), {"s": "7"}),
        (parameter("u", "seven", ""), {"u": "seven"}),
        ('{"x": 3, "s": "b"}', {"x": 3, "s": "b"}),
        ('\n{"arguments": {"x": 3}}\n', {"x": 3}),
        (parameter("x", "abc"), {"x": "abc"}),
        (parameter("x", "NaN"), {"x": "NaN"}),
        (parameter("x", "1e999"), {"x": "1e999"}),
        (parameter("x", "[" * 9000), {"x": "[" * 9000}),
        (parameter("arguments", '{"x": 3}'), {"x": 3}),
        (parameter("input", '{"x": 3}', ' string="true"'), {"x": 3}),
        (parameter("s", 'a</parameter>"\n<b>', ' string="true"'), {"s": 'a</parameter>"\n<b>'}),
        (parameter("s", "a@b", ' string="true"'), {"s": "a｜DSML｜b"}),
        ('<@parameter name="s" string="true">open', {"s": "open"}),
        ('<@parameter name="x" string="false">1</@parameter', {"x": 1}),
        ("\n", {}),
        ("", {}),
    ],
    ids=lambda given: str(given)[:40],
)
def test_what_was_meant_is_found(inside: str, expected: object) -> None:
    assert one(invoke(inside)) == ("f", expected)


def test_a_declared_key_is_not_taken_for_a_wrapper() -> None:
    assert one(invoke(parameter("input", '{"x": 3}'), "g")) == ("g", {"input": {"x": 3}})
    assert one(invoke('{"input": {"x": 3}}', "g")) == ("g", {"input": {"x": 3}})


@pytest.mark.parametrize("name", ["behind", "either", "only named"])
def test_a_key_is_declared_wherever_a_schema_says_so(name: str) -> None:
    value = '{"x": 3}' if name == "behind" else {"x": 3}
    assert one(invoke(parameter("input", '{"x": 3}'), name)) == (name, {"input": value})


def test_a_value_without_its_kind_is_read_as_a_schema_behind_a_reference_says() -> None:
    assert one(invoke(parameter("input", "7", ""), "behind")) == ("behind", {"input": "7"})


@pytest.mark.parametrize(
    "text",
    [
        '<@invoke name="f">\n</@invoke>',
        '<@invoke name="f"/>',
        '<@tool_calls><@invoke name="f"/></@tool_calls>',
        '<@invoke name="f"/>text after',
        '<@toolcalls><@invoke name="f"></@invoke></@toolcalls>',
        '<@ tool_calls>\n<@ invoke name="f">\n</@ invoke>\n</@ tool_calls>',
        '<@tool_calls><@invoke name = "f" ></@invoke>text after<@tool_calls>',
        '<@tool_calls><@invoke name="f"></@tool_calls>',
    ],
)
def test_loose_wrappers_are_read(text: str) -> None:
    assert one(text) == ("f", {})


def test_heads_that_are_left_open_end_with_the_next_tag() -> None:
    text = '<@tool_calls<@invoke name="f"' + parameter("x", "1").strip() + "</@invoke"

    assert read(text + "</@tool_calls>") == [whole("f", '{"x": 1}')]


def test_a_call_is_told_with_the_last_character_of_its_tag() -> None:
    text = invoke("")[: -len("\n</@tool_calls>")]

    assert read(text[:-1], ended=False) == []
    assert read(text, ended=False) == [whole("f", "{}")]


def test_a_call_after_an_unclosed_one_closes_it() -> None:
    calls = read('<@invoke name="f"><@invoke name="plain"></@invoke>')

    assert [call.name for call in calls] == ["f", "plain"]


@pytest.mark.parametrize("cut", range(2, 85))
def test_a_call_that_was_cut_off_is_invalid_and_no_json(cut: int) -> None:
    text = '<@tool_calls>\n<@invoke name="f">' + parameter("x", "12345") + "</@invoke>"

    *begun, invalid = read(text[: min(cut, len(text) - 1)])

    assert isinstance(invalid, InvalidCall)
    named = cut >= len('<@tool_calls>\n<@invoke name="f"')
    assert invalid.name == ("f" if named else None)
    assert invalid.begun == bool(begun)
    for piece in begun:
        assert isinstance(piece, CallPiece)
        assert piece.arguments in ("", '{"x": 12345')
        assert not piece.ended


def test_a_second_call_that_was_cut_before_its_name_is_invalid() -> None:
    text = '<@tool_calls>\n<@invoke name="f"></@invoke>\n<@invoke name="pla'

    first, second = read(text)

    assert first == whole("f", "{}")
    assert isinstance(second, InvalidCall)
    assert (second.name, second.begun) == (None, False)


@pytest.mark.parametrize(
    "end", ["", "\n", "\n</", "\n</@", "\n</@tool_calls", "\n</@tool_calls>\n<"]
)
def test_an_answer_that_ends_after_a_whole_call_has_no_other(end: str) -> None:
    assert read('<@tool_calls>\n<@invoke name="f"></@invoke>' + end) == [whole("f", "{}")]


@pytest.mark.parametrize("text", ["<@", "<@tool_calls>", "<@tool_calls>\n</@tool_calls>"])
def test_a_block_without_any_call_is_not_passed_over(text: str) -> None:
    [call] = read(text)

    assert isinstance(call, InvalidCall)
    assert call.name is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (invoke("", "unknown"), "unknown"),
        ("<@invoke></@invoke>", None),
        (invoke("no object"), "f"),
        (invoke("[1]"), "f"),
        (invoke("<@parameter>1</@parameter>"), "f"),
    ],
)
def test_what_nobody_can_run_is_told_as_invalid(text: str, name: str | None) -> None:
    [call] = read(text)

    assert isinstance(call, InvalidCall)
    assert call.name == name
    assert call.error


def test_a_repeated_parameter_counts_once() -> None:
    """The first value may have gone out before the second one comes."""
    assert one(invoke(parameter("x", "1") + parameter("x", "2"))) == ("f", {"x": 1})
    twice = parameter("arguments", '{"x": 1}') + parameter("arguments", '{"x": 2}')
    assert one(invoke(twice)) == ("f", {"x": 1})
