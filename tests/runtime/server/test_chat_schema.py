"""Tests of runtime.server.chat_schema: what a body means for V4's encoder, and what is refused."""

from functools import reduce
from random import Random
from typing import Any

import msgspec
import pytest

from runtime.errors import BadRequest
from runtime.messages import unpack_ids
from runtime.server.chat_schema import ChatBody, conversation_chars
from tests.runtime.chat.conversations import Json, conversation, encoder
from tests.runtime.server.engine import Server, served

CHAT = "/v1/chat/completions"
HI: Json = {"role": "user", "content": "hi"}
TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL: Json = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
DEEP: Json = reduce(lambda inner, _: {"a": inner}, range(5000), Json())
DEEP_CALL: Json = {"id": "1", "function": {"name": "f", "arguments": DEEP}}


def body(**fields: Any) -> ChatBody:
    return msgspec.json.decode(msgspec.json.encode({"messages": [HI], **fields}), type=ChatBody)


def test_a_conversation_keeps_all_that_is_rendered() -> None:
    for seed in range(300):
        request = conversation(Random(seed))

        told = msgspec.convert(request, ChatBody).conversation()

        assert encoder().encode(told).token_ids == encoder().encode(request).token_ids, seed


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"thinking": True}, {"thinking": {"type": "enabled"}}),
        ({"thinking": {"type": "disabled"}}, {"thinking": {"type": "disabled"}}),
        ({"chat_template_kwargs": {"thinking": False}}, {"thinking": {"type": "disabled"}}),
        ({"chat_template_kwargs": {"enable_thinking": True}}, {"thinking": {"type": "enabled"}}),
        ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        ({"reasoning_effort": "none", "thinking": True}, {"thinking": {"type": "enabled"}}),
        ({"reasoning_effort": "max"}, {"reasoning_effort": "max"}),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, {"reasoning_effort": "low"}),
    ],
)
def test_every_way_to_ask_for_thinking_is_understood(fields: Json, expected: Json) -> None:
    told = body(**fields).conversation()

    assert {key: told[key] for key in told if key != "messages"} == expected


def test_messages_are_told_as_deepseek_has_them() -> None:
    answer = {"role": "assistant", "content": None, "reasoning": "R", "tool_calls": [CALL]}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    result = {"role": "tool", "tool_call_id": "1", "content": parts, "name": "f"}
    first = {"role": "developer", "content": "S"}

    told = body(messages=[first, HI, answer, result]).conversation()["messages"]

    assert told == [
        {"role": "system", "content": "S"},
        HI,
        {"role": "assistant", "content": "", "reasoning_content": "R", "tool_calls": [CALL]},
        {"role": "tool", "content": "a\n\nb", "tool_call_id": "1"},
    ]


def test_arguments_may_be_an_object() -> None:
    call = {**CALL, "function": {"name": "f", "arguments": {"x": 1}}}

    [_, told] = body(messages=[HI, {"role": "assistant", "tool_calls": [call]}]).conversation()[
        "messages"
    ]

    assert told["tool_calls"][0]["function"]["arguments"] == '{"x":1}'


@pytest.mark.parametrize("way", ["continue_final_message", "prefix"])
def test_the_last_answer_can_be_continued(way: str) -> None:
    last: Json = {"role": "assistant", "content": "It is"}
    fields: Json = {"messages": [HI, last]}
    (last if way == "prefix" else fields)[way] = True

    assert body(**fields).conversation()["messages"][-1]["prefix"] is True


def test_a_schema_without_its_type_is_an_objects() -> None:
    tool = {"function": {"name": "f", "parameters": {"properties": {}}}}

    told = body(tools=[tool]).conversation()["tools"]

    assert told[0]["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({"enable_thinking": True}, True),
        ({"enable_thinking": False}, False),
        ({"enable_thinking": None}, None),
        ({"enable_thinking": True, "thinking": True}, True),
        ({"enable_thinking": True, "thinking": {"type": "enabled"}}, True),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"enable_thinking": True, "reasoning_effort": "none"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"thinking": False, "enable_thinking": False}}, False),
    ],
)
def test_thinking_can_be_switched_under_each_of_its_names(
    fields: Json, thinks: bool | None
) -> None:
    kinds: dict[bool | None, Json | None] = {
        True: {"type": "enabled"}, False: {"type": "disabled"}, None: None
    }  # fmt: skip

    assert body(**fields).conversation().get("thinking") == kinds[thinks]


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": True, "thinking": False},
        {"enable_thinking": False, "thinking": {"type": "enabled"}},
        {"enable_thinking": False, "chat_template_kwargs": {"thinking": True}},
        {"chat_template_kwargs": {"thinking": True, "enable_thinking": False}},
    ],
)
def test_switches_that_contradict_each_other_are_refused(fields: Json) -> None:
    with pytest.raises(BadRequest, match="contradict") as refused:
        body(**fields).conversation()

    assert refused.value.param == "enable_thinking"


SEARCH: Json = {"type": "web_search"}


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        (CHAT, {"tools": [TOOL, SEARCH]}, "tools[1].type: Invalid enum value 'web_search': tools"),
        (
            CHAT,
            {"tools": [{**TOOL, "type": "custom"}]},
            'tools[0]: Object missing required field `custom`: such a tool is {"type": "custom"',
        ),
        (
            CHAT,
            {"tools": [{"type": "function", "name": "f", "parameters": {}}]},
            'tools[0]: Object missing required field `function`: a tool is {"type": "function"',
        ),
        (
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", **SEARCH}]}]},
            "messages[0].tool_calls[0].type: Invalid enum value 'web_search': tools of type",
        ),
        ("/tokenize", {"tools": [SEARCH]}, "tools[0].type: Invalid enum value 'web_search': tools"),
    ],
)
@served(v4=True)
async def test_tools_that_are_no_functions_are_refused_with_their_place(
    server: Server, path: str, fields: Json, text: str
) -> None:
    reply = await server.post(path, {"messages": [HI], **fields})

    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(text)
    assert not server.engine.requests


@served(v4=True)
async def test_thinking_can_be_switched_off_beside_the_messages(server: Server) -> None:
    ids: list[Any] = []
    for fields in ({"enable_thinking": False}, {"enable_thinking": True}, {}):
        asked = {"messages": [HI], **fields}
        assert (await server.post(CHAT, {**asked, "max_tokens": 2})).status_code == 200
        ids.append((await server.post("/tokenize", asked)).json()["tokens"])
        assert ids[-1] == unpack_ids(server.engine.requests[-1].input_ids).tolist()

    assert ids[0] != ids[1]
    refused = await server.post(CHAT, {"messages": [HI], "enable_thinking": "no"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "enable_thinking"


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("messages", {"messages": []}),
        ("messages", {"messages": [{"role": "function", "content": "x"}]}),
        ("messages", {"messages": [{"role": "user", "content": None}]}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("messages", {"messages": [{**HI, "audio": {"id": "1"}}]}),
        ("messages", {"messages": [{"role": "system", "content": "x", "tools": [TOOL]}, HI]}),
        ("thinking", {"thinking": {"type": "adaptive"}}),
        ("thinking", {"thinking": "yes"}),
        ("reasoning_effort", {"reasoning_effort": "enormous"}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"documents": "x"}}),
        ("add_generation_prompt", {"add_generation_prompt": False}),
    ],
)
def test_what_v4_cannot_say_is_refused(param: str, fields: Json) -> None:
    with pytest.raises(BadRequest) as refused:
        body(**fields).conversation()

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": [{"function": {"name": "f", "parameters": DEEP}}]}),
        ("messages", {"messages": [{"role": "assistant", "tool_calls": [DEEP_CALL]}]}),
    ],
)
def test_what_is_nested_too_deeply_is_refused(param: str, fields: Json) -> None:
    asked = msgspec.convert({"messages": [HI], **fields}, ChatBody)

    with pytest.raises(BadRequest, match="nested too deeply") as refused:
        asked.conversation()

    assert refused.value.param == param


def test_all_that_becomes_the_prompt_counts_as_its_text() -> None:
    page = "x" * 1000
    call = {**CALL, "function": {"name": "f", "arguments": page}}
    said: list[Json] = [
        {"messages": [{"role": "user", "content": page}]},
        {"messages": [HI, {"role": "assistant", "content": None, "reasoning": page}]},
        {"messages": [HI, {"role": "assistant", "tool_calls": [call]}]},
        {"tools": [{"function": {"name": "f", "description": page}}]},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": page}}}},
    ]
    for fields in said:
        assert 1000 <= conversation_chars(body(**fields).conversation()) < 1200


def test_a_schema_nested_too_deeply_has_no_length() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": DEEP}}
    asked = msgspec.convert({"messages": [HI], "response_format": form}, ChatBody)

    with pytest.raises(BadRequest, match="response_format: nested too deeply"):
        conversation_chars(asked.conversation())


def test_an_answer_that_is_continued_calls_no_tools() -> None:
    begun: Json = {"role": "assistant", "content": "x", "prefix": True}
    plain = body(messages=[HI, begun]).conversation()

    with pytest.raises(BadRequest, match="cannot call tools") as refused:
        body(messages=[HI, begun], tools=[TOOL]).conversation()
    assert refused.value.param == "tools"
    assert body(messages=[HI, begun], tools=[TOOL], tool_choice="none").conversation() == plain


NAMED: Json = {"type": "function", "function": {"name": "f"}}
REFUSED: dict[str, Json] = {
    "required of none": {"tool_choice": "required"},
    "unknown tool": {"tools": [TOOL], "tool_choice": {**NAMED, "function": {"name": "g"}}},
    "malformed choice": {"tools": [TOOL], "tool_choice": {"type": "function"}},
    **{
        f"call and {name}": {"tools": [TOOL], "tool_choice": NAMED, name: text}
        for name, text in {
            "regex": "a",
            "ebnf": 'root ::= "a"',
            "json_schema": "{}",
            "structural_tag": '{"type": "structural_tag"}',
        }.items()
    },
    "two formats": {"regex": "a", "response_format": {"type": "json_object"}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {}}},
    "tool without name": {"tools": [{"type": "function", "function": {}}]},
    "tool of a bad name": {"tools": [{"type": "function", "function": {"name": "a b"}}]},
    "lonely result": {"messages": [{"role": "tool", "tool_call_id": "1", "content": "x"}]},
    "call without result": {"messages": [HI, {"role": "assistant", "tool_calls": [CALL]}, HI]},
    "user continued": {"continue_final_message": True},
}


@pytest.mark.parametrize("name", REFUSED)
@served(v4=True)
async def test_what_cannot_be_served_is_refused_with_its_name(server: Server, name: str) -> None:
    reply = await server.post(CHAT, {"messages": [HI], **REFUSED[name]})

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"]
    assert not server.engine.requests


@served()
async def test_a_jinja_template_takes_no_tools(server: Server) -> None:
    reply = await server.post(CHAT, {"messages": [HI], "tools": [TOOL]})

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tools"


@served(v4=True)
async def test_a_forced_call_follows_its_tool_where_a_format_of_content_is_asked_for(
    server: Server,
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    forced = {"messages": [HI], "tools": [TOOL], "tool_choice": "required"}
    for fields in (forced, {**forced, "response_format": form}):
        assert (await server.post(CHAT, fields)).status_code == 200

    plain, formatted = (request.sampling.grammar for request in server.engine.requests)
    assert plain is not None
    assert plain == formatted
