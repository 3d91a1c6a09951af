"""Tests of runtime.server.responses_schema: requests as chats, and refusals that name fields."""

from typing import Any

import msgspec
import pytest

from runtime.errors import BadRequest, BadSampling
from runtime.server.body import decode
from runtime.server.chat_schema import ChatBody
from runtime.server.responses_schema import LOGPROBS, ResponsesBody, in_responses

Json = dict[str, Any]

TOOL: Json = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
FORM: Json = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}


def chat(**fields: Any) -> ChatBody:
    body = decode(msgspec.json.encode({"input": "hi", **fields}), ResponsesBody)
    return body.chat(body.items)


def test_a_text_is_a_message_of_the_user_behind_the_instructions() -> None:
    told = chat(instructions="Be brief.")

    assert [message.role for message in told.messages] == ["system", "user"]
    assert [message.role for message in chat(instructions="").messages] == ["user"]


def test_fields_become_those_of_a_chat() -> None:
    told = chat(
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        reasoning={"effort": "low", "summary": "auto"},
        parallel_tool_calls=False,
        include=[LOGPROBS],
        top_logprobs=2,
        top_k=3,
        seed=7,
        stream=True,
        text={"verbosity": "medium"},
        rid="r",
        cache_salt="s",
    )

    assert (told.max_tokens, told.temperature, told.top_p) == (5, 0.5, 0.9)
    assert (told.reasoning_effort, told.parallel_tool_calls) == ("low", False)
    assert (told.logprobs, told.top_logprobs, told.top_k, told.seed) == (True, 2, 3, 7)
    assert (told.stream, told.rid, told.cache_salt) == (True, "r", "s")
    assert chat().logprobs is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, None),
        ({"type": "text"}, {"type": "text"}),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {**FORM, "strict": True, "description": "d"},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": FORM["schema"]}},
        ),
    ],
)
def test_a_format_is_that_of_a_chat(given: Any, told: Any) -> None:
    assert chat(text={"format": given}).response_format == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tools_and_their_choice_are_those_of_a_chat(given: Any, told: Any) -> None:
    asked = chat(tools=[TOOL], tool_choice=given)

    assert asked.tool_choice == told
    [tool] = asked.tools or []
    assert msgspec.to_builtins(tool.function) == {
        "name": "f", "description": "", "parameters": {"type": "object"}, "strict": True,
    }  # fmt: skip
    assert chat(tools=[]).tools is None


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools", "'web_search' not supported"),
        ({"tools": [TOOL, {"type": "mcp", "x": 1}]}, "tools", "'mcp' not supported"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "a function is"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice", "got 'file_search'"),
        ({"tool_choice": 5}, "tool_choice", "none, auto, required, name a function"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "got 'grammar'"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "schema is missing"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "ask for it in a message"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "itself is returned"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "not supported"),
        ({"include": ["x"]}, "include", "'x' is none of"),
        ({"top_logprobs": 2}, "top_logprobs", "needs include"),
        ({"metadata": {"a": "b" * 513}}, "metadata", "at most 16 entries"),
        ({"metadata": {"a" * 65: ""}}, "metadata", "at most 16 entries"),
        ({"metadata": {str(k): "" for k in range(17)}}, "metadata", "at most 16 entries"),
        ({"metadata": {"a": 1}}, "metadata", "Expected `str`"),
        ({"background": True}, "background", "use stream"),
        ({"truncation": "auto"}, "truncation", "is refused, never cut"),
        ({"conversation": "conv_1"}, "conversation", "use previous_response_id"),
        ({"input": []}, "input", "input must have 1 to"),
        ({"input": {"role": "user"}}, "input", "Expected `str | array`"),
        ({"input": None}, "input", "Expected `str | array`"),
        ({"input": [5]}, "input", r"input\[0\]: Expected `object`"),
        ({"input": [{"role": "user", "content": [{}]}]}, "input", "missing required field `type`"),
    ],
)
def test_a_refusal_names_its_field(fields: Json, param: str, told: str) -> None:
    with pytest.raises(BadRequest, match=told) as refused:
        chat(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fault", "param", "message"),
    [
        (
            BadSampling("max_tokens", "at least 0", -1),
            "max_output_tokens",
            "max_output_tokens must",
        ),
        (BadRequest("reasoning_effort must", param="reasoning_effort"), "reasoning.effort", "reas"),
        (BadRequest("tool messages", param="messages"), "input", "tool messages"),
        (BadRequest("tools: no", param="tools"), "tools", "tools: no"),
    ],
)
def test_refusals_of_the_chat_name_the_clients_fields(
    fault: BadRequest, param: str, message: str
) -> None:
    with pytest.raises(BadRequest) as refused, in_responses():
        raise fault
    assert refused.value.param == param
    assert refused.value.message.startswith(message)
