"""Tests of runtime.server.responses_tools: functions, namespaces, and tools that are refused."""

from typing import Any

import msgspec
import pytest

from runtime.errors import BadRequest
from runtime.messages import unpack_ids
from runtime.server.body import decode
from runtime.server.chat_schema import ChatBody
from runtime.server.responses_schema import ResponsesBody
from tests.runtime.server.engine import Server, served
from tests.runtime.server.test_responses_api import HI, PARAMETERS, create, events
from tests.runtime.server.test_responses_reply import CALLS

Json = dict[str, Any]

FUNCTION: Json = {"type": "function", "name": "f", "parameters": PARAMETERS}
GROUP: Json = {"type": "namespace", "name": "n", "description": "Group.", "tools": [FUNCTION]}
OFFLINE: Json = {"type": "web_search", "external_web_access": False}
HOSTED: Json = {"type": "web_search"}
MCP: Json = {"type": "mcp", "server_label": "x", "server_url": "http://x"}
CALLED = CALLS.replace('name="f"', 'name="n__f"')


def body(*tools: Json, **fields: Any) -> ResponsesBody:
    return decode(msgspec.json.encode({"input": "hi", "tools": tools, **fields}), ResponsesBody)


def chat(*tools: Json, **fields: Any) -> ChatBody:
    request = body(*tools, **fields)
    return request.chat(request.items)


def names(told: ChatBody) -> list[str]:
    return [tool.called.name for tool in told.tools or ()]


def test_functions_of_a_namespace_are_offered_by_both_names_with_both_descriptions() -> None:
    told = chat(FUNCTION, GROUP, {**GROUP, "name": "m", "description": None})

    assert names(told) == ["f", "n__f", "m__f"]
    assert [tool.called.description for tool in told.tools or ()] == ["", "Group.", ""]


def test_a_tool_choice_can_name_a_function_of_a_namespace() -> None:
    told = chat(FUNCTION, GROUP, tool_choice={"type": "function", "name": "f", "namespace": "n"})

    assert list(told.forced_tools() or ()) == ["n__f"]


def test_some_of_the_tools_can_be_allowed() -> None:
    tools = [{"type": "function", "name": "f", "namespace": "n"}, {"type": "custom", "name": "c"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": tools}
    told = chat(FUNCTION, GROUP, {"type": "custom", "name": "c"}, HOSTED, tool_choice=choice)

    assert list(told.forced_tools() or ()) == ["n__f", "c"]


def test_a_search_without_the_web_is_left_out_beside_functions() -> None:
    request = body(FUNCTION, OFFLINE)

    assert names(request.chat(request.items)) == ["f"]
    assert [tool.type for tool in request.offered] == ["function"]


@pytest.mark.parametrize("choice", ["none", {"type": "function", "name": "f"}])
def test_tools_that_the_choice_does_not_reach_are_left_out(choice: Any) -> None:
    assert names(chat(FUNCTION, HOSTED, MCP, tool_choice=choice)) == ["f"]


@pytest.mark.parametrize("choice", [None, "auto", "required"])
def test_tools_that_the_model_could_call_are_refused_by_their_types(choice: Any) -> None:
    with pytest.raises(BadRequest, match=r"'web_search', 'mcp' not supported") as refused:
        chat(FUNCTION, HOSTED, MCP, HOSTED, OFFLINE, tool_choice=choice)

    assert (refused.value.param, refused.value.code) == ("tools", "not_supported")


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ([OFFLINE], "'web_search' not supported"),
        ([{**GROUP, "tools": [{"type": "custom", "name": "c"}]}], r"tools\[0\].tools\[0\].*custom"),
        ([{**GROUP, "tools": []}], "a namespace has a name and tools"),
        ([{**GROUP, "name": ""}], "a namespace has a name and tools"),
        ([{**GROUP, "tools": [{"type": "function"}]}], "a function is"),
        ([{**FUNCTION, "name": "n__f"}, GROUP], "'n__f' is there twice"),
    ],
)
def test_a_refusal_says_which_tool_is_meant(tools: list[Json], told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        chat(*tools)


@served(v4=True)
async def test_a_call_has_its_name_and_namespace_apart(server: Server) -> None:
    server.engine.reply = CALLED
    request = {**HI, "tools": [GROUP, OFFLINE, FUNCTION]}

    response = await create(server, request)
    done = [e["item"] for e in await events(server, request) if e["type"].endswith("item.done")]

    for items in (response["output"], done):
        calls = [item for item in items if item["type"] == "function_call"]
        assert [(call["namespace"], call["name"]) for call in calls] == [("n", "f")] * 2
    assert [tool["type"] for tool in response["tools"]] == ["namespace", "function"]


@served(v4=True)
async def test_a_call_of_a_namespace_is_read_back_as_it_was_made(server: Server) -> None:
    server.engine.reply = CALLED
    request = {**HI, "tools": [GROUP]}
    first = await create(server, request)
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "r"}
        for item in first["output"]
        if item["type"] == "function_call"
    ]

    await create(server, {**request, "previous_response_id": first["id"], "input": results})
    whole = [{"role": "user", "content": "hi"}, *first["output"], *results]
    await create(server, {**request, "input": whole})

    _, kept, sent = (one.input_ids for one in server.engine.requests)
    assert kept == sent
    ids = unpack_ids(kept).tolist()
    assert "n__f" in server.engine.tokenizer.decode(ids, skip_special_tokens=False)
