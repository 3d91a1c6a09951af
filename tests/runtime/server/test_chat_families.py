"""Chats of families with Jinja templates through the routes: tools, reasoning, usage, streams."""

import asyncio
import json
from typing import Any

import pytest

from runtime.config import ServerConfig
from runtime.messages import unpack_ids
from tests.runtime.chat.families import (
    FAMILIES,
    TOOLS,
    end_id,
    family_format,
    family_tokenizer,
    shown_tools,
)
from tests.runtime.server.engine import TEMPLATE, Server, served, serving
from tests.runtime.server.test_chat_v4 import calls_of

PATH = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
WITH_TOOLS: dict[str, Any] = {**HI, "tools": shown_tools()}
CITY = '{"city": "Oslo"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {CITY}}}\n</tool_call>'
ANSWERS = {
    "qwen3": f"<think>\nwhy\n</think>\n\nso\n{CALL}",
    "smol": f"so\n{CALL}",
    "llama": f'{{"name": "get_weather", "parameters": {CITY}}}',
    "mistral": f'so[TOOL_CALLS] [{{"name": "get_weather", "arguments": {CITY}}}]',
    "deepseek_v3": "why\n</think>so<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
    f"<｜tool▁sep｜>get_weather\n```json\n{CITY}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": "so<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    f"{CITY}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "gpt_oss": "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary"
    f" to=functions.get_weather <|constrain|>json<|message|>{CITY}",
}


# Their answers are calls alone.
SILENT = ("llama", "gpt_oss")


def family(name: str, **settings: Any) -> dict[str, Any]:
    """Return what `served` takes for a family."""
    config = ServerConfig(model_path="/models/tiny", served_model_name="tiny", **settings)
    return {
        "config": config,
        "template": FAMILIES[name][0],
        "family": (family_tokenizer(name), end_id(name)),
    }


def prompt_text(server: Server) -> str:
    """Return the last prompt, control tokens spelled."""
    ids = [int(i) for i in unpack_ids(server.engine.requests[-1].input_ids)]
    return server.engine.tokenizer.decode(ids, skip_special_tokens=False)


async def check_family(name: str) -> None:
    async with serving(**family(name)) as server:
        server.engine.reply = ANSWERS[name]

        reply = (await server.post(PATH, WITH_TOOLS)).json()
        *chunks, _ = await server.events(PATH, WITH_TOOLS)

        choice = reply["choices"][0]
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls"
        assert "invalid_tool_calls" not in message
        [call] = message["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": CITY}
        thinks = "why" in ANSWERS[name]
        assert message.get("reasoning_content") == ("why" if thinks else None)
        assert message["content"] == (None if name in SILENT else "so")
        deltas = [c["choices"][0]["delta"] for c in chunks]
        assert [c["function"] for c in calls_of(deltas)] == [call["function"]]
        assert sum("tool_calls" in delta for delta in deltas) > 3
        for field in ("content", "reasoning_content"):
            said = "".join(delta.get(field) or "" for delta in deltas)
            assert said == (message.get(field) or "")
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert "get_weather" in prompt_text(server)
        if family_format(name).reasoning and thinks and name != "gpt_oss":
            details = reply["usage"]["completion_tokens_details"]
            assert 3 <= details["reasoning_tokens"] <= 5


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_reasoning_and_content_come_whole_and_in_a_stream(name: str) -> None:
    asyncio.run(check_family(name))


@served(**family("qwen3"))
async def test_calls_and_results_of_earlier_turns_are_rendered(server: Server) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "noop", "arguments": "{}"}}
    messages = [
        *HI["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call_1", "content": "done <|im_end|>"},
    ]

    await server.post(PATH, {**WITH_TOOLS, "messages": messages})

    text = prompt_text(server)
    assert '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "noop", "arguments": {}}\n' in text
    assert "<|im_start|>user\ndone <|im_end|><|im_end|>\n<|im_start|>assistant\n" in text
    ids = [int(i) for i in unpack_ids(server.engine.requests[-1].input_ids)]
    # What the client spells is text, in a result as in a message.
    assert ids.count(end_id("qwen3")) == 4


@served(**family("qwen3"))
async def test_tools_cannot_spell_a_control_token(server: Server) -> None:
    function = {"name": "f", "description": "x<|im_end|>y", "parameters": {"a<|im_end|>": {}}}

    await server.post(PATH, {**HI, "tools": [{"type": "function", "function": function}]})

    ids = [int(i) for i in unpack_ids(server.engine.requests[-1].input_ids)]
    assert ids.count(end_id("qwen3")) == 2
    assert prompt_text(server).count("<|im_end|>") == 4


@served(**family("mistral"))
async def test_ids_of_calls_have_the_length_that_mistrals_templates_want(server: Server) -> None:
    call = {"id": "call_0123456789", "type": "function", "function": {"name": "noop"}}
    messages = [
        *HI["messages"],
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0123456789", "content": "done"},
    ]

    reply = await server.post(PATH, {**WITH_TOOLS, "messages": messages})

    assert reply.status_code == 200, reply.text
    assert prompt_text(server).count('"123456789"') == 2


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "noop"}}])
@served(**family("deepseek_v3"))
async def test_a_forced_call_is_held_from_the_end_of_the_reasoning_on(
    server: Server, choice: Any
) -> None:
    await server.post(PATH, {**WITH_TOOLS, "tool_choice": choice})

    grammar = server.engine.requests[-1].sampling.grammar
    assert grammar is not None
    tokenizer = family_tokenizer("deepseek_v3")
    assert grammar.after == tokenizer.token_to_id("</think>")
    assert grammar.barred == tokenizer.token_to_id("<｜tool▁calls▁begin｜>")
    assert ("get_weather" in grammar.text) == (choice == "required")
    assert ('"repeat"' in grammar.text) == (choice == "required")


@served(**family("qwen3"))
async def test_a_strict_tool_is_held_from_the_first_call_on(server: Server) -> None:
    tools = shown_tools()
    tools[0]["function"]["strict"] = True

    await server.post(PATH, {**HI, "tools": tools, "parallel_tool_calls": False})

    grammar = server.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert (grammar.after, grammar.may_end) == (
        family_tokenizer("qwen3").token_to_id("<tool_call>"),
        True,
    )
    assert '"star"' not in grammar.text
    assert "strict" not in prompt_text(server)


@served(**family("llama"))
async def test_a_strict_tool_is_refused_where_no_token_begins_calls(server: Server) -> None:
    tools = shown_tools()
    tools[0]["function"]["strict"] = True

    reply = await server.post(PATH, {**HI, "tools": tools})

    assert reply.status_code == 400
    assert "tool_choice" in reply.json()["error"]["message"]


@served(**family("qwen3"))
async def test_an_answer_may_follow_a_schema_or_call_tools(server: Server) -> None:
    await server.post(PATH, {**WITH_TOOLS, "response_format": {"type": "json_object"}})

    grammar = server.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert grammar.kind == "json_object"
    assert "get_weather" in grammar.calls


@served(**family("qwen3"))
async def test_tools_that_are_nested_too_deeply_are_refused(server: Server) -> None:
    depths = [*range(100, 1000, 300), 150_000]
    for depth in depths:
        nested = '{"not":' * depth + "{}" + "}" * depth
        body = json.dumps({**HI, "tools": shown_tools()[:1]})
        body = body.replace('{"type": "string"}', nested)

        reply = await server.client.post(PATH, content=body)

        assert reply.status_code in (200, 400), (depth, reply.text)


@served()
async def test_a_model_without_a_known_format_refuses_tools_in_one_line(server: Server) -> None:
    reply = await server.post(PATH, WITH_TOOLS)

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tools"
    assert "\n" not in reply.json()["error"]["message"]
    assert "--chat-template" in reply.json()["error"]["message"]
    result = {"role": "tool", "tool_call_id": "1", "content": "x"}
    late = await server.post(PATH, {"messages": [*HI["messages"], result]})
    assert late.status_code == 400


@served(**family("qwen3"))
async def test_tools_that_must_not_be_called_are_neither_shown_nor_looked_for(
    server: Server,
) -> None:
    server.engine.reply = "{}"

    reply = await server.post(PATH, {**WITH_TOOLS, "tool_choice": "none"})

    assert reply.json()["choices"][0]["message"]["content"] == "{}"
    assert "get_weather" not in prompt_text(server)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
@served(**family("qwen3"))
async def test_thinking_is_switched_off_by_any_of_its_names(
    server: Server, fields: dict[str, Any]
) -> None:
    await server.post(PATH, {**HI, **fields})
    assert prompt_text(server).endswith("<think>\n\n</think>\n\n")

    await server.post(PATH, {**HI, "reasoning_effort": "high"})
    assert prompt_text(server).endswith("assistant\n")


@served(**family("gpt_oss"))
async def test_an_effort_reaches_a_template_that_has_levels(server: Server) -> None:
    await server.post(PATH, {**HI, "reasoning_effort": "high"})

    assert "Reasoning: high" in prompt_text(server)
    ends = server.engine.requests[-1].sampling.stop_token_ids
    assert family_tokenizer("gpt_oss").token_to_id("<|call|>") not in ends
    await server.post(PATH, WITH_TOOLS)
    ends = server.engine.requests[-1].sampling.stop_token_ids
    assert family_tokenizer("gpt_oss").token_to_id("<|call|>") in ends


@served(**family("llama", chat_template_date="2026-02-03"))
async def test_the_date_of_templates_is_a_setting(server: Server) -> None:
    await server.post(PATH, WITH_TOOLS)

    assert "On 03 Feb 2026 answer" in prompt_text(server)


@served(template=TEMPLATE + "{% for d in documents or [] %}[{{ d.text }}]{% endfor %}")
async def test_documents_reach_a_template_that_reads_them(server: Server) -> None:
    await server.post(PATH, {**HI, "documents": [{"text": "x<|eos|>"}]})

    assert prompt_text(server).endswith("[x<|eos|>]")
    ids = unpack_ids(server.engine.requests[-1].input_ids)
    assert server.engine.eos not in ids


@served()
async def test_documents_that_nobody_would_read_are_refused(server: Server) -> None:
    reply = await server.post(PATH, {**HI, "documents": [{"text": "x"}]})

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "documents"


@served(**family("qwen3"))
async def test_the_other_dialects_call_tools_too(server: Server) -> None:
    server.engine.reply = ANSWERS["qwen3"]
    schema = TOOLS["get_weather"]
    theirs = [{"name": "get_weather", "input_schema": schema}]
    body = {**HI, "model": "tiny", "max_tokens": 500, "tools": theirs}

    message = (await server.post("/v1/messages", body)).json()

    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["content"][2]["input"] == json.loads(CITY)
    assert message["stop_reason"] == "tool_use"
    ours = [{"type": "function", "name": "get_weather", "parameters": schema}]
    response = (await server.post("/v1/responses", {"input": "hi", "tools": ours})).json()
    assert [item["type"] for item in response["output"]] == [
        "reasoning", "message", "function_call",
    ]  # fmt: skip
    assert response["output"][2]["arguments"] == CITY


@served(**family("qwen3"))
async def test_stop_strings_are_searched_in_the_content_alone(server: Server) -> None:
    server.engine.reply = f"<think>\nOslo\n</think>\n\nso{CALL}"

    reply = await server.post(PATH, {**WITH_TOOLS, "stop": ["Oslo"], "logprobs": True})

    choice = reply.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    content = "".join(entry["token"] for entry in choice["logprobs"]["content"])
    assert content == "so"


@served(**family("qwen3", tool_call_parser="llama3"))
async def test_flags_outrank_what_is_found(server: Server) -> None:
    info = (await server.client.get("/model_info")).json()

    assert (info["tool_call_parser"], info["reasoning_parser"]) == ("llama3", "qwen3")
