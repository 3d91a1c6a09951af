"""Tests of runtime.server.messages_schema: Anthropic's fields as those of a chat."""

from typing import Any

import msgspec
import pytest

from runtime.errors import BadRequest
from runtime.server.body import decode
from runtime.server.chat_schema import ChatBody
from runtime.server.messages_schema import CountBody, MessagesBody

HI: dict[str, Any] = {
    "model": "m",
    "max_tokens": 2000,
    "messages": [{"role": "user", "content": "hi"}],
}
TOOL: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}


def chat(**fields: Any) -> ChatBody:
    return msgspec.convert({**HI, **fields}, MessagesBody).chat()


def test_sampling_is_passed_on_under_its_names() -> None:
    asked: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.25, "top_k": 3, "stream": True, "seed": 4, "min_tokens": 2,
        "cache_salt": "a", "priority": 5, "rid": "r",
    }  # fmt: skip

    body = chat(**asked, stop_sequences=["x", "y"], metadata={"user_id": "u"})

    assert {name: getattr(body, name) for name in asked} == asked
    assert (body.max_tokens, body.stop) == (2000, ["x", "y"])


@pytest.mark.parametrize("key", [-1, (1 << 61) - 1, 1 << 70])
def test_a_number_that_is_no_token_id_is_no_key(key: int) -> None:
    body = msgspec.json.encode({**HI, "logit_bias": {str(key): 1}})

    with pytest.raises(BadRequest, match="logit_bias") as refused:
        decode(body, MessagesBody)

    assert refused.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, None),
        ({"type": "adaptive", "display": "summarized"}, None),
        ({"type": "disabled"}, {"type": "disabled"}),
        ({"type": "enabled", "budget_tokens": 1024}, {"type": "enabled"}),
    ],
)
def test_thinking_is_on_off_or_as_the_model_does_it(thinking: Any, expected: Any) -> None:
    assert chat(thinking=thinking).thinking == expected


@pytest.mark.parametrize("budget", [0, 1023, 2000])
def test_a_budget_lies_between_a_least_and_the_answers_length(budget: int) -> None:
    with pytest.raises(BadRequest, match="budget_tokens"):
        chat(thinking={"type": "enabled", "budget_tokens": budget})


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, None, None),
        ({"type": "auto"}, "auto", None),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "none"}, "none", None),
        ({"type": "any"}, "required", None),
        (
            {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            {"type": "function", "function": {"name": "f"}},
            False,
        ),
    ],
)
def test_the_choice_of_tools_is_that_of_a_chat(choice: Any, expected: Any, parallel: Any) -> None:
    body = chat(tools=[TOOL], tool_choice=choice)

    assert (body.tool_choice, body.parallel_tool_calls) == (expected, parallel)


def test_calls_of_a_strict_tool_are_held_to_its_schema() -> None:
    body = chat(tools=[{**TOOL, "strict": True}, {**TOOL, "name": "g"}])

    assert body.held_tools() == {"f": TOOL["input_schema"], "g": None}


def test_a_schema_for_the_output_is_a_response_format() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "schema": schema}

    body = chat(output_config={"effort": "low", "format": form})

    assert body.reasoning_effort == "low"
    assert body.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema},
    }


def test_tools_keep_their_order_and_schema() -> None:
    other = {"name": "g", "description": "does g", "input_schema": {"type": "object", "a": 1}}

    tools = chat(tools=[TOOL, {**other, "cache_control": {"type": "ephemeral"}}]).tools

    assert tools is not None
    functions = [tool.called for tool in tools]
    assert [(f.name, f.description) for f in functions] == [("f", ""), ("g", "does g")]
    assert tools[1].called.parameters == {"type": "object", "a": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"thread": {"type": "create"}},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    ],
)
def test_what_would_change_the_answer_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(fields))):
        chat(**fields)


def test_the_earlier_name_of_the_format_means_the_same() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}

    newer, earlier = chat(output_config={"format": form}), chat(output_format=form)

    assert newer.response_format == earlier.response_format
    assert chat(output_format=None).response_format is None
    with pytest.raises(BadRequest, match=r"output_format is the earlier name of output_config"):
        chat(output_format=form, output_config={"format": form})


def test_a_budget_of_the_whole_task_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"output_config.task_budget is not supported: V4"):
        chat(output_config={"task_budget": {"type": "tokens", "total": 20000}})


def test_clearing_old_thinking_is_what_the_format_does_anyway() -> None:
    edit = {"type": "clear_thinking_20251015", "keep": "all"}

    assert chat(context_management={"edits": [edit]}).messages == chat().messages


def test_counting_needs_no_length() -> None:
    body = msgspec.convert({name: HI[name] for name in ("model", "messages")}, CountBody)

    assert body.prompt().messages == chat().messages


@pytest.mark.parametrize(
    ("thinking", "omits"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "adaptive", "display": "omitted"}, True),
        ({"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, True),
        ({"type": "enabled", "budget_tokens": 1024, "display": "summarized"}, False),
    ],
)
def test_thinking_can_be_left_out_of_the_reply(thinking: Any, omits: bool) -> None:
    assert msgspec.convert({**HI, "thinking": thinking}, MessagesBody).omits_thinking is omits
