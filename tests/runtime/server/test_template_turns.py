"""Tests of runtime.server.template_turns: what of a body a template sees."""

from typing import Any

import msgspec
import pytest

from runtime.chat.answer_formats import DEEPSEEK_V3, HERMES, MISTRAL
from runtime.chat_template import Message
from runtime.errors import BadRequest
from runtime.server.chat_schema import ChatBody
from runtime.server.template_turns import template_tools, template_turns, template_variables

CALL: dict[str, Any] = {
    "id": "call_0123456789",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a": 1}'},
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": CALL["id"], "content": "done"}


def body(*messages: dict[str, Any], **fields: Any) -> ChatBody:
    return msgspec.convert({"messages": [*messages], **fields}, ChatBody)


def shown(call: Any) -> Any:
    return call.fields["tool_calls"][0]


def test_roles_are_those_that_templates_know() -> None:
    turns = template_turns(
        body({"role": "developer", "content": "S"}, {"role": "user", "content": "hi"}), None
    )

    assert turns == [Message("system", "S"), Message("user", "hi")]
    with pytest.raises(BadRequest, match=r"messages\[0\]: role"):
        template_turns(body({"role": "critic", "content": "x"}), None)


def test_calls_and_results_are_shown() -> None:
    turns = template_turns(body({"role": "assistant", "tool_calls": [CALL]}, RESULT), HERMES)

    assert turns[0].content is None
    assert shown(turns[0]) == {**CALL, "function": {"name": "f", "arguments": {"a": 1}}}
    assert turns[1] == Message("tool", "done", {"tool_call_id": CALL["id"], "name": "f"})


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_arguments_are_text_where_templates_join_it(arguments: Any) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}

    [turn] = template_turns(body({"role": "assistant", "tool_calls": [call]}), DEEPSEEK_V3)

    assert shown(turn)["function"]["arguments"].replace(" ", "") == '{"a":1}'


@pytest.mark.parametrize("arguments", ["oops", "[1]", "3"])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}

    [turn] = template_turns(body({"role": "assistant", "tool_calls": [call]}), HERMES)

    assert shown(turn)["function"]["arguments"] == arguments


def test_mistrals_ids_have_nine_characters() -> None:
    turns = template_turns(body({"role": "assistant", "tool_calls": [CALL]}, RESULT), MISTRAL)

    assert shown(turns[0])["id"] == turns[1].fields["tool_call_id"] == "123456789"
    short = {**CALL, "id": "7"}
    [turn] = template_turns(body({"role": "assistant", "tool_calls": [short]}), MISTRAL)
    assert shown(turn)["id"] == "000000007"


def test_calls_are_refused_where_no_format_is_known() -> None:
    for message in ({"role": "assistant", "tool_calls": [CALL]}, RESULT):
        with pytest.raises(BadRequest, match="no tool calls that are known"):
            template_turns(body(message), None)


def test_reasoning_has_the_names_that_templates_read() -> None:
    [turn] = template_turns(body({"role": "assistant", "content": "x", "reasoning": "hm"}), None)

    assert turn.fields == {"reasoning_content": "hm", "thinking": "hm"}


def test_tools_are_shown_without_what_a_grammar_holds() -> None:
    tools = [{"type": "function", "function": {"name": "f", "strict": True}}]
    user = {"role": "user", "content": "hi"}

    assert template_tools(body(user, tools=tools)) == [
        {"type": "function", "function": {"name": "f"}}
    ]
    assert template_tools(body(user, tools=tools, tool_choice="none")) is None
    assert template_tools(body(user)) is None


@pytest.mark.parametrize(
    ("fields", "reads", "expected"),
    [
        ({"reasoning_effort": "none"}, {"enable_thinking"}, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, {"enable_thinking"}, {"enable_thinking": True}),
        ({"thinking": {"type": "enabled"}}, {"enable_thinking"}, {"enable_thinking": True}),
        ({"enable_thinking": False}, {"thinking"}, {"thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort"}, {"reasoning_effort": "low"}),
        (
            {"reasoning_effort": "low", "enable_thinking": False},
            {"reasoning_effort", "thinking"},
            {"reasoning_effort": "low", "thinking": False},
        ),
        ({"chat_template_kwargs": {"depth": 3}}, set[str](), {"depth": 3}),
    ],
)
def test_thinking_goes_by_the_name_that_the_template_reads(
    fields: dict[str, Any], reads: set[str], expected: dict[str, Any]
) -> None:
    said = body({"role": "user", "content": "hi"}, **fields)

    assert template_variables(said, reads) == expected


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "strftime_now"])
def test_no_argument_replaces_a_name_of_the_templates_own(name: str) -> None:
    said = body({"role": "user", "content": "hi"}, chat_template_kwargs={name: "x"})

    with pytest.raises(BadRequest, match="no template argument"):
        template_variables(said, set())
