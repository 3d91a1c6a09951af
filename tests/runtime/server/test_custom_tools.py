"""Tests of runtime.server.custom_tools: tools that take text, as functions to the model."""

import json
from typing import Any

import pytest

from runtime.errors import BadRequest
from runtime.messages import unpack_ids
from runtime.server.custom_tools import (
    CustomCalls,
    CustomFormat,
    CustomGrammar,
    CustomTool,
    InputText,
    as_arguments,
    as_input,
)
from tests.runtime.server.engine import Server, served
from tests.runtime.server.test_responses_api import create, events
from tests.runtime.server.test_responses_reply import kinds

Json = dict[str, Any]

INPUT = 'print("é🙂")\n\\'
CHAT = "/v1/chat/completions"
HI: Json = {"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "none"}
REGEX: Json = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]+"}}
TOOL: Json = {"type": "custom", "custom": {"name": "code", "description": "Runs code."}}
FUNCTION: Json = {"type": "function", "function": {"name": "f", "parameters": {}}}
FLAT: Json = {"type": "custom", "name": "code", "description": "Runs code."}
CALL = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="code">\n<｜DSML｜parameter name="input" '
    f'string="true">{INPUT}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
)


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_input_comes_as_its_arguments_do(step: int, ascii_only: bool) -> None:
    arguments = json.dumps({"input": INPUT}, ensure_ascii=ascii_only, indent=1)
    text = InputText()

    pieces = [text.feed(arguments[k : k + step]) for k in range(0, len(arguments), step)]

    assert "".join(pieces) + text.finish() == INPUT
    assert as_input(as_arguments(INPUT)) == INPUT


def test_arguments_without_an_input_are_all_of_it() -> None:
    text = InputText()

    assert text.feed('{"code": 1}') == ""
    assert text.finish() == as_input('{"code": 1}') == '{"code": 1}'
    assert as_input("[") == "["


def test_other_calls_and_deltas_stay_as_they_are() -> None:
    calls = CustomCalls({"code"})
    other = {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "f", "arguments": ""}}]}

    assert calls.delta(other) is other or calls.delta(other) == other
    assert calls.delta({"content": "a"}) == {"content": "a"}
    assert calls.message({"content": "a"}) == {"content": "a"}
    assert calls.finish() is None


def test_a_pattern_is_the_text_and_other_grammars_are_refused() -> None:
    def tool(form: CustomFormat | None) -> CustomTool:
        return CustomTool("code", format=form)

    flat = CustomFormat("grammar", syntax="regex", definition="a+")
    nested = CustomFormat("grammar", grammar=CustomGrammar("regex", "a+"))

    assert [tool(form).pattern("x") for form in (None, CustomFormat("text"), flat, nested)] == [
        None,
        None,
        "a+",
        "a+",
    ]
    assert tool(flat).parameters("x")["properties"]["input"]["pattern"] == "a+"
    for form in (
        CustomFormat("grammar", syntax="lark", definition="start: A"),
        CustomFormat("grammar", syntax="regex"),
        CustomFormat("json"),
    ):
        with pytest.raises(BadRequest, match=r"syntax|format\.type"):
            tool(form).pattern("x")


@served(v4=True)
async def test_a_custom_call_goes_out_and_comes_back(server: Server) -> None:
    server.engine.reply, server.engine.step = CALL, 1
    asked = {**HI, "tools": [FUNCTION, TOOL]}

    whole = (await server.post(CHAT, asked)).json()["choices"][0]
    chunks = await server.post(CHAT, {**asked, "stream": True})
    deltas = [json.loads(line[6:]) for line in chunks.text.splitlines() if line[6:7] == "{"]
    pieces = [p for d in deltas for p in d["choices"][0]["delta"].get("tool_calls", ())]

    [call] = whole["message"]["tool_calls"]
    assert call == {"id": call["id"], "type": "custom", "custom": {"name": "code", "input": INPUT}}
    assert whole["finish_reason"] == "tool_calls"
    assert (pieces[0]["type"], pieces[0]["custom"]["name"]) == ("custom", "code")
    assert "".join(piece["custom"]["input"] for piece in pieces) == INPUT
    assert len(pieces) > 3

    result = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
    messages = [*HI["messages"], whole["message"], result]
    reply = await server.post(CHAT, {**asked, "messages": messages})
    assert reply.status_code == 200, reply.text
    first, later = (
        [int(i) for i in unpack_ids(server.engine.requests[k].input_ids)] for k in (0, -1)
    )
    answer = server.engine.tokenizer.encode(CALL).ids
    assert later[: len(first) + len(answer)] == first + answer


@served(v4=True)
async def test_a_pattern_holds_calls_and_lark_is_refused_by_name(server: Server) -> None:
    held = {**TOOL, "custom": {**TOOL["custom"], "format": REGEX}}
    lark = {**REGEX, "grammar": {"syntax": "lark", "definition": "start: A"}}

    await server.post(CHAT, {**HI, "tools": [held]})
    refused = await server.post(
        CHAT, {**HI, "tools": [{**TOOL, "custom": {**TOOL["custom"], "format": lark}}]}
    )

    grammar = server.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert "[a-z]+" in grammar.text
    assert refused.status_code == 400
    assert "'lark'" in refused.json()["error"]["message"]


@served(v4=True)
async def test_a_response_has_custom_calls_as_items(server: Server) -> None:
    server.engine.reply = CALL
    asked: Json = {"input": "hi", "reasoning": {"effort": "none"}, "tools": [FLAT]}

    reply = await create(server, asked)
    told = await events(server, asked)

    [item] = reply["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "code", INPUT)
    assert item["id"].startswith("ctc_")
    assert kinds(told)[2:6] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    done = next(event for event in told if event["type"].endswith("input.done"))
    assert done["input"] == INPUT
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}
    again = await create(server, {**asked, "input": [output], "previous_response_id": reply["id"]})
    assert again["status"] == "completed"
