"""Chats of a V4 tokenizer through the routes: reasoning, tools, usage, streams."""

import json
from typing import Any

import pytest

from runtime.messages import unpack_ids
from runtime.tokenizer.threads import LONG_CHARS
from tests.runtime.chat.conversations import encoder
from tests.runtime.server.engine import Server, served, tokenised

PATH = "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low"}
TOOLS: dict[str, Any] = {
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {"type": "object", "properties": {"s": {"type": "string"}}},
            },
        }
    ]
}
INVOKE = (
    '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">a</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
)
CALLS = f"why</think>so\n\n<｜DSML｜tool_calls>\n{INVOKE}{INVOKE}</｜DSML｜tool_calls>"


def calls_of(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls of a stream as a client puts them together."""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for piece in delta.get("tool_calls", []):
            if "id" in piece:
                calls.append({**piece, "function": dict(piece["function"])})
            else:
                assert piece["index"] == calls[-1]["index"]
                calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    return calls


@served(v4=True)
async def test_reasoning_is_told_apart_and_counted(server: Server) -> None:
    server.engine.reply = "why</think>hello"

    reply = (await server.post(PATH, HI)).json()

    choice, usage = reply["choices"][0], reply["usage"]
    assert choice["message"] == {
        "role": "assistant", "content": "hello", "refusal": None, "reasoning_content": "why",
    }  # fmt: skip
    assert choice["finish_reason"] == "stop"
    reasoning = len(server.engine.tokenizer.encode("why").ids)
    assert usage["completion_tokens_details"] == {"reasoning_tokens": reasoning}
    assert [int(i) for i in unpack_ids(server.engine.requests[0].input_ids)] == (
        encoder().encode(HI).token_ids
    )


@served(v4=True)
async def test_chat_mode_has_no_reasoning(server: Server) -> None:
    reply = (await server.post(PATH, {**HI, "reasoning_effort": "none"})).json()

    assert reply["choices"][0]["message"]["content"] == "hello"
    assert "reasoning_content" not in reply["choices"][0]["message"]
    assert "completion_tokens_details" not in reply["usage"]


@served(v4=True)
async def test_tool_calls_are_told(server: Server) -> None:
    server.engine.reply = CALLS

    choice = (await server.post(PATH, {**HI, **TOOLS})).json()["choices"][0]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "so"
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [{"name": "f", "arguments": '{"s": "a"}'}] * 2
    assert len({call["id"] for call in calls}) == 2


@served(v4=True)
async def test_one_call_at_a_time_can_be_asked_for(server: Server) -> None:
    server.engine.reply = CALLS

    reply = await server.post(PATH, {**HI, **TOOLS, "parallel_tool_calls": False})

    message = reply.json()["choices"][0]["message"]
    assert len(message["tool_calls"]) == 1
    assert len(message["invalid_tool_calls"]) == 1


PAST: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "done"},
]


@pytest.mark.parametrize("messages", [HI["messages"], PAST], ids=["new", "after calls"])
@pytest.mark.parametrize("fields", [{}, {**TOOLS, "tool_choice": "none"}], ids=["no", "none"])
@served(v4=True)
async def test_a_call_that_no_tool_is_offered_for_is_invalid_and_no_content(
    server: Server, fields: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    server.engine.reply = CALLS
    body = {**HI, **fields, "messages": messages}

    choice = (await server.post(PATH, body)).json()["choices"][0]
    *chunks, _ = await server.events(PATH, body)

    assert choice["message"]["content"] == "so"
    assert choice["finish_reason"] == "stop"
    invalid = choice["message"]["invalid_tool_calls"]
    error = "the request lets no tool be called"
    assert invalid == [{"name": "f", "error": error}] * 2
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == "so"
    assert not any("tool_calls" in delta for delta in deltas)
    assert [d["invalid_tool_calls"] for d in deltas if "invalid_tool_calls" in d] == [invalid]


@served(v4=True)
async def test_long_tools_keep_no_short_text_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tokenised(server, monkeypatch)
    function = {"name": "f", "description": "x" * LONG_CHARS}

    await server.post(PATH, {**HI, "tools": [{"type": "function", "function": function}]})
    await server.post(PATH, {**HI, **TOOLS})

    assert [chars >= LONG_CHARS for chars in asked[:2]] == [True, False]


@pytest.mark.parametrize("step", [1, 3, 1000])
@served(v4=True)
async def test_a_stream_tells_the_same(server: Server, step: int) -> None:
    server.engine.reply, server.engine.step = CALLS, step
    body = {**HI, **TOOLS, "n": 2, "logprobs": True, "stream_options": {"include_usage": True}}

    *chunks, usage, done = await server.events(PATH, body)

    for index in range(2):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        deltas = [choice["delta"] for choice in mine]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "why"
        assert "".join(delta.get("content", "") for delta in deltas) == "so"
        calls = calls_of(deltas)
        assert [call["index"] for call in calls] == [0, 1]
        assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"s": "a"}] * 2
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["tool_calls"]
        entries = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
        assert [entry["token"] for entry in entries] == ["s", "o"]
    details = usage["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == 2 * len(server.engine.tokenizer.encode("why").ids)
    assert done == "[DONE]"


@pytest.mark.parametrize("step", [1, 1000])
@served(v4=True)
async def test_token_ids_are_told_when_asked(server: Server, step: int) -> None:
    server.engine.reply, server.engine.step = CALLS, step
    body = {**HI, **TOOLS, "return_token_ids": True}

    whole = (await server.post(PATH, body)).json()["choices"][0]
    *chunks, _ = await server.events(PATH, body)
    plain = (await server.post(PATH, HI)).json()["choices"][0]

    ids = server.engine.tokenizer.encode(CALLS).ids
    assert whole["token_ids"][:-1] == ids
    told = [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])]
    assert told == whole["token_ids"]
    assert "token_ids" not in plain


@served(v4=True)
async def test_a_call_cut_by_the_length_stays_incomplete(server: Server) -> None:
    server.engine.reply = CALLS
    most = len(server.engine.tokenizer.encode(CALLS.rpartition("</｜DSML｜parameter")[0]).ids)
    body = {**HI, **TOOLS, "max_tokens": most}

    choice = (await server.post(PATH, body)).json()["choices"][0]
    *chunks, _ = await server.events(PATH, body)

    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["tool_calls"]) == 1
    [invalid] = choice["message"]["invalid_tool_calls"]
    assert invalid["name"] == "f"
    streamed = [c["choices"][0] for c in chunks]
    assert [c["finish_reason"] for c in streamed if c["finish_reason"]] == ["length"]
    deltas = [c["delta"] for c in streamed]
    whole, cut = calls_of(deltas)
    assert whole["function"]["arguments"] == '{"s": "a"}'
    assert cut["function"]["arguments"] == '{"s": "a'
    told = [d["invalid_tool_calls"] for d in deltas if "invalid_tool_calls" in d]
    assert told == [[{"id": cut["id"], **invalid}]]


@pytest.mark.parametrize("stream", [False, True])
@served(v4=True)
async def test_an_answer_cut_before_a_call_has_a_name_says_so(server: Server, stream: bool) -> None:
    server.engine.reply = CALLS
    begun = CALLS.partition('voke name="f"')[0]
    first = len(server.engine.tokenizer.encode(CALLS.partition("tool_calls>")[0]).ids)

    for most in range(first, len(server.engine.tokenizer.encode(begun).ids) + 1):
        body = {**HI, **TOOLS, "max_tokens": most}
        if stream:
            *chunks, _ = await server.events(PATH, body)
            told = chunks[-2]["choices"][0]["delta"]
            finish = chunks[-1]["choices"][0]["finish_reason"]
        else:
            choice = (await server.post(PATH, body)).json()["choices"][0]
            told, finish = choice["message"], choice["finish_reason"]
            assert told["content"] == "so"
        [invalid] = told["invalid_tool_calls"]
        assert (invalid["name"], finish) == (None, "length")
        assert "named a tool" in invalid["error"]


@served(v4=True)
async def test_a_call_that_just_ends_is_not_to_be_made(server: Server) -> None:
    """The first call is whole, the second one ends without its closing tag."""
    server.engine.reply = CALLS.rpartition("</｜DSML｜invoke")[0]

    choice = (await server.post(PATH, {**HI, **TOOLS})).json()["choices"][0]
    *chunks, _ = await server.events(PATH, {**HI, **TOOLS})

    _, cut = calls_of([chunk["choices"][0]["delta"] for chunk in chunks])
    assert cut["function"]["arguments"] == '{"s": "a"'
    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"


@served(v4=True)
async def test_a_value_that_was_read_otherwise_costs_the_next_turn_only_what_follows_it(
    server: Server,
) -> None:
    """History spells the value as the client has it, not as the model wrote it."""
    server.engine.reply = CALLS.replace('string="true">a', 'string="false">12345')
    body = {**HI, **TOOLS}
    message = (await server.post(PATH, body)).json()["choices"][0]["message"]
    calls = message["tool_calls"]
    assert [c["function"]["arguments"] for c in calls] == ['{"s": "12345"}'] * 2
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "r"} for c in calls]

    await server.post(PATH, {**body, "messages": [*HI["messages"], message, *results]})

    first, then = ([int(i) for i in unpack_ids(r.input_ids)] for r in server.engine.requests)
    written = server.engine.tokenizer.encode(CALLS.partition('true">a')[0]).ids
    assert then[: len(first) + len(written)] == first + written


@served(v4=True)
async def test_a_calls_name_and_its_arguments_come_while_they_are_written(server: Server) -> None:
    server.engine.reply = CALLS.replace(">a</", f">{'a word ' * 20}</")

    *chunks, _ = await server.events(PATH, {**HI, **TOOLS})

    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    pieces = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
    assert pieces[0]["function"] == {"name": "f", "arguments": '{"s": "'}
    assert len(pieces) > 20
    assert {len(call["function"]) for call in pieces if "id" not in call} == {1}


@served(v4=True)
async def test_reasoning_can_stay_in_the_content(server: Server) -> None:
    server.engine.reply = "why</think>hello"

    reply = (await server.post(PATH, {**HI, "separate_reasoning": False})).json()

    assert reply["choices"][0]["message"]["content"] == "why</think>hello"


@served(v4=True)
async def test_streamed_reasoning_can_be_held_until_it_is_whole(server: Server) -> None:
    server.engine.reply = "why not</think>hello"

    *chunks, _ = await server.events(PATH, {**HI, "stream_reasoning": False})

    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert [d["reasoning_content"] for d in deltas if "reasoning_content" in d] == ["why not"]


@served(v4=True)
async def test_a_stop_string_ends_the_content(server: Server) -> None:
    server.engine.reply = "why</think>hello there"

    choice = (await server.post(PATH, {**HI, "stop": "lo t"})).json()["choices"][0]

    assert choice["message"]["content"] == "hel"
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "lo t")


@served(v4=True)
async def test_quoted_control_tokens_stay_text(server: Server) -> None:
    said = "<｜User｜></think>"

    await server.post(PATH, {"messages": [{"role": "user", "content": said}], "thinking": False})

    ids = [int(i) for i in unpack_ids(server.engine.requests[0].input_ids)]
    assert server.engine.tokenizer.decode(ids[2:-2], skip_special_tokens=False) == said
    assert [i for i in ids if i < 9] == [0, 3, 4, 6]


@served(v4=True)
async def test_tokenize_gives_the_prompt_of_a_chat_with_tools(server: Server) -> None:
    reply = (await server.post("/tokenize", {**HI, **TOOLS})).json()

    assert reply["tokens"] == encoder().encode({**HI, **TOOLS}).token_ids


@served(v4=True)
async def test_the_format_is_told(server: Server) -> None:
    info = (await server.client.get("/model_info")).json()

    assert info["chat_format"] == "deepseek_v4"
    assert (info["reasoning_parser"], info["tool_call_parser"]) == ("deepseek-v4", "deepseekv4")
    assert (await server.client.get("/server_info")).json()["chat_format"] == "deepseek_v4"
