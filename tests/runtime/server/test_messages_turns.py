"""Tests of runtime.server.messages_turns: prompts are those of DeepSeek's own conversion."""

import json
from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any

import deepseek_recipe as recipe
import msgspec
import pytest

from runtime.errors import BadRequest
from runtime.server.messages_blocks import Block, Message, ToolResultBlock, ToolUseBlock
from runtime.server.messages_schema import CountBody
from runtime.server.messages_turns import chat_messages
from tests.runtime.chat import conversations
from tests.runtime.chat.conversations import encoder, tokenizer

Json = dict[str, Any]

TOOLS: list[Json] = [
    {"name": "f", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    {"name": "g", "description": "does g", "input_schema": {"type": "object"}},
]
OFF: Json = {"thinking": {"type": "disabled"}}
CALLS: Json = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "first", "signature": "s"},
        {"type": "text", "text": "one"},
        {"type": "thinking", "thinking": "second", "signature": "s"},
        {"type": "text", "text": "two"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"x": [1, 2.5, None], "s": "a\nb"}},
        {"type": "tool_use", "id": "2", "name": "g", "input": {}},
    ],
}
RESULTS: Json = {
    "role": "user",
    "content": [
        {"type": "tool_result", "tool_use_id": "2"},
        {
            "type": "tool_result",
            "tool_use_id": "1",
            "is_error": True,
            "content": [{"type": "text", "text": "r"}, {"type": "text", "text": "s"}],
        },
        {"type": "text", "text": "and now?"},
    ],
}


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def texts(*said: str) -> list[Json]:
    marked = {"cache_control": {"type": "ephemeral"}}
    return [{"type": "text", "text": text, **marked} for text in said]


CONVERSATIONS: dict[str, Json] = {
    "plain": {"messages": [user("hi")]},
    "without thinking": {"messages": [user("hi")], **OFF},
    "adaptive": {"messages": [user("hi")], "thinking": {"type": "adaptive"}},
    "enabled": {"messages": [user("hi")], "thinking": {"type": "enabled", "budget_tokens": 2048}},
    "effort": {"messages": [user("hi")], "output_config": {"effort": "max"}},
    "blocks": {"messages": [user(texts("a", "b")), user("c")], "system": texts("s", "t"), **OFF},
    "accounting": {
        "messages": [user("hi")],
        "system": texts("x-anthropic-billing-header: cc_version=2; cch=1f;", "You are"),
    },
    "turns": {"messages": [user("a"), {"role": "assistant", "content": "b"}, user("c")]},
    "a reminder": {
        "messages": [
            user("a"),
            {"role": "assistant", "content": "b"},
            {"role": "system", "content": texts("new", "rule")},
            user("c"),
            {"role": "system", "content": "rule"},
        ],
        "system": "old rule",
        **OFF,
    },
    "tools": {"messages": [user("go"), CALLS, RESULTS], "tools": TOOLS},
    "tools, no thinking": {"messages": [user("go"), CALLS, RESULTS], "tools": TOOLS, **OFF},
    "no tool now": {
        "messages": [user("go"), CALLS, RESULTS],
        "tools": TOOLS,
        "tool_choice": {"type": "none"},
    },
    "old thinking": {
        "messages": [
            user("a"),
            {"role": "assistant", "content": [CALLS["content"][0], *texts("b")]},
            user("c"),
        ]
    },
}


def ours(body: Json) -> list[int]:
    asked = msgspec.convert({"model": "m", **body}, CountBody)
    return encoder().encode(asked.prompt().conversation()).token_ids


@cache
def _encoding() -> recipe.DeepseekV4Encoding:
    own = recipe.Tokenizer.from_str(tokenizer().to_str())
    return recipe.DeepseekV4Encoding().with_tokenizer(own)


def theirs(body: Json) -> list[int]:
    request = json.dumps({"model": "DeepSeek-V4-Pro", "max_tokens": 4096, **body}).encode()
    converted = recipe.MessagesRequest(request).convert(recipe.ConversionOptions())
    return _encoding().encode(converted.conversation)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_prompt_is_the_one_of_deepseeks_own_conversion(name: str) -> None:
    assert ours(CONVERSATIONS[name]) == theirs(CONVERSATIONS[name])


def _blocks(said: Json) -> list[Json]:
    """Return a chat's message as blocks."""
    blocks: list[Json] = []
    if said.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": said["reasoning_content"], "signature": "s"})
    if said["content"]:
        blocks.append({"type": "text", "text": said["content"]})
    for call in said.get("tool_calls", []):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        use = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}
        blocks.append(use)
    return blocks or [{"type": "text", "text": ""}]


def _as_messages(request: Json) -> Json:
    """Return a chat request in Anthropic's form."""
    body: Json = {"messages": []}
    for said in request["messages"]:
        match said["role"]:
            case "system":
                body["system"] = said["content"]
            case "tool":
                result = {"type": "tool_result", "tool_use_id": said["tool_call_id"]}
                if body["messages"][-1]["role"] != "user":
                    body["messages"].append(user([]))
                body["messages"][-1]["content"].append({**result, "content": said["content"]})
            case "user":
                body["messages"].append(user(said["content"]))
            case _:
                body["messages"].append({"role": "assistant", "content": _blocks(said)})
    functions = [tool["function"] for tool in request.get("tools", [])]
    if functions:
        body["tools"] = [
            {
                "name": function["name"],
                "description": function.get("description", ""),
                "input_schema": function["parameters"],
            }
            for function in functions
        ]
    if request.get("thinking") == {"type": "disabled"}:
        body["thinking"] = {"type": "disabled"}
    return body


@pytest.mark.parametrize("seed", range(60))
def test_any_conversation_gives_the_prompt_of_deepseeks_own_conversion(seed: int) -> None:
    body = _as_messages(conversations.conversation(Random(seed)))

    assert ours(body) == theirs(body)


def test_a_number_for_accounting_changes_nothing_wherever_it_stands() -> None:
    def asked(number: int, *, whole: bool) -> list[int]:
        line = f"x-anthropic-billing-header: cch={number};"
        system = f"{line}\nYou are" if whole else texts(line, "You are")
        return ours({"messages": [user("hi")], "system": system})

    plain = ours({"messages": [user("hi")], "system": "You are"})
    assert asked(1, whole=True) == asked(2, whole=False) == plain


def test_an_answer_can_be_begun() -> None:
    begun = {"role": "assistant", "content": "The best is ("}

    ids = ours({"messages": [user("which?"), begun], **OFF})

    asked = ours({"messages": [user("which?")], **OFF})
    assert ids[: len(asked)] == asked
    assert tokenizer().decode(ids[len(asked) :]) == "The best is ("


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages"),
        ([user([]), user([])], "messages: none has any content"),
        ([user([{"type": "thinking", "thinking": "x"}])], r"messages\[0\].content\[0\]"),
        ([user(texts("a") + CALLS["content"][-1:])], r"messages\[0\].content\[1\]"),
        ([user("a"), {"role": "assistant", "content": RESULTS["content"]}], r"messages\[1\]"),
        ([{"role": "system", "content": RESULTS["content"][:1]}], r"messages\[0\].content\[0\]"),
    ],
)
def test_what_no_conversation_can_be_is_refused_with_its_place(
    messages: list[Json], where: str
) -> None:
    with pytest.raises(BadRequest, match=where):
        ours({"messages": messages})


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([CALLS, user("no result")], "the tool_use '1' has no tool_result"),
        ([CALLS, user(RESULTS["content"][:1])], "the tool_use '1' has no tool_result"),
        ([CALLS], "the tool_use '1' has no tool_result"),
        ([CALLS, user([*texts("a text"), *RESULTS["content"]])], "the tool_use '1' has no"),
        ([user([RESULTS["content"][0]])], "the tool_result of '2' belongs to no tool_use"),
        ([CALLS, RESULTS, user(RESULTS["content"][:1])], "the tool_result of '2' belongs to no"),
    ],
)
def test_results_must_follow_their_calls(messages: list[Json], told: str) -> None:
    with pytest.raises(BadRequest, match=told) as refused:
        ours({"messages": [user("go"), *messages], "tools": TOOLS})
    assert refused.value.param == "messages"


def called(calls: Iterable[str], results: Iterable[str]) -> list[Message]:
    uses: list[Block] = [ToolUseBlock(name, "f", {}) for name in calls]
    answers: list[Block] = [ToolResultBlock(name) for name in results]
    return [Message("user", "go"), Message("assistant", uses), Message("user", answers)]


@pytest.mark.parametrize(
    ("calls", "results", "told"),
    [
        (["", "1"], ["1", ""], None),
        (["1", "1"], ["1", "1"], None),
        (["1", "1"], ["1"], "the tool_use '1' has no tool_result"),
        (["1", "2", "3"], ["1", "3"], "the tool_use '2' has no tool_result"),
        ([""], [], "the tool_use '' has no tool_result"),
        (["1"], ["1", "1"], "the tool_result of '1' belongs to no tool_use"),
    ],
)
def test_each_call_has_a_result_of_its_own(
    calls: list[str], results: list[str], told: str | None
) -> None:
    if told is None:
        assert len(chat_messages(None, called(calls, results))) == 2 + len(results)
        return
    with pytest.raises(BadRequest, match=told):
        chat_messages(None, called(calls, results))


class _Compared(str):
    """A text that counts how often such texts are compared."""

    compared = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        _Compared.compared += 1
        return str.__eq__(self, other)


def test_a_result_finds_its_call_without_looking_at_the_others() -> None:
    names = [str(k) for k in range(300)]
    _Compared.compared = 0

    chat_messages(None, called(map(_Compared, names), map(_Compared, reversed(names))))

    assert _Compared.compared < 10 * len(names)
