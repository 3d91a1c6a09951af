"""Tests of runtime.server.responses_turns: prompts are those of DeepSeek's own conversion."""

import json
from functools import cache
from random import Random
from typing import Any

import deepseek_recipe as recipe
import msgspec
import pytest

from runtime.errors import BadRequest
from runtime.server.chat_schema import ChatBody, Tool, ToolFunction
from runtime.server.responses_items import Item
from runtime.server.responses_turns import MAX_ITEMS, chat_messages
from tests.runtime.chat.conversations import encoder, tokenizer

Json = dict[str, Any]

PARAMETERS: Json = {"type": "object", "properties": {"s": {"type": "string"}}}
USER: Json = {"role": "user", "content": "hi"}
PARTS: Json = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
}
SAID: Json = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "status": "completed",
    "content": [{"type": "output_text", "text": "so", "annotations": []}],
}
WHY: Json = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "why"}],
}


def call(call_id: str, **fields: Any) -> Json:
    made = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": '{"s": "a"}'}
    return {**made, **fields}


def output(name: str, told: Any = "r") -> Json:
    return {"type": "function_call_output", "call_id": name, "output": told}


def chat(items: list[Json], instructions: str | None = None) -> list[Any]:
    return chat_messages(instructions, msgspec.convert(items, list[Item]))


def ours(items: list[Json], instructions: str | None, *, tools: bool) -> list[int]:
    offered = [Tool(ToolFunction("f", "", PARAMETERS))] if tools else None
    body = ChatBody(messages=chat(items, instructions), tools=offered)
    return encoder().encode(body.conversation()).token_ids


@cache
def _encoding() -> recipe.DeepseekV4Encoding:
    own = recipe.Tokenizer.from_str(tokenizer().to_str())
    return recipe.DeepseekV4Encoding().with_tokenizer(own)


def theirs(items: list[Json], instructions: str | None, *, tools: bool) -> list[int]:
    body: Json = {"model": "DeepSeek-V4-Pro", "input": items, "instructions": instructions}
    if tools:
        body["tools"] = [{"type": "function", "name": "f", "parameters": PARAMETERS}]
    converted = recipe.ResponsesRequest(json.dumps(body).encode())
    conversation = converted.convert(recipe.ConversionOptions()).conversation
    return _encoding().encode(conversation)


def conversation(random: Random) -> list[Json]:
    """Return any conversation that has an output for each call."""
    items: list[Json] = []
    for number in range(random.randint(1, 8)):
        ids = [f"{number}a", f"{number}b"][: random.randint(1, 2)]
        calls = [*map(call, ids), *map(output, reversed(ids))]
        plain = [USER, PARTS, SAID, WHY, {"role": "assistant", "content": "x"}]
        roles = [{"role": role, "content": role} for role in ("system", "developer")]
        items += random.choice([calls, [random.choice(plain)], [random.choice(roles)]])
    return items


@pytest.mark.parametrize("seed", range(60))
def test_any_conversation_gives_the_prompt_of_deepseeks_own_conversion(seed: int) -> None:
    random = Random(seed)
    items, tools = conversation(random), random.random() < 0.5
    instructions = random.choice([None, "Be brief."])

    assert ours(items, instructions, tools=tools) == theirs(items, instructions, tools=tools)


def test_the_items_of_an_answer_are_one_message_in_any_order() -> None:
    [_, answer, *results] = chat([USER, WHY, call("1"), SAID, call("2"), output("2"), output("1")])

    assert answer.reasoning_content == "why"
    assert [part.text for part in answer.content] == ["so"]
    assert [call.id for call in answer.tool_calls] == ["1", "2"]
    assert [result.tool_call_id for result in results] == ["2", "1"]


def test_a_call_that_was_cut_off_is_left_out() -> None:
    cut = call("1", arguments='{"s": "', status="incomplete")

    assert chat([USER, cut, USER]) == chat([USER, USER])
    assert chat([USER, SAID, cut, USER]) == chat([USER, SAID, USER])


def test_an_output_may_have_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]

    result = chat([USER, call("1"), output("1", parts)])[-1]

    assert [part.text for part in result.content] == ["a", "b"]


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ([], "input must have 1 to"),
        ([USER] * (MAX_ITEMS + 1), "input must have 1 to"),
        ([USER, call("1")], "the call '1' has no function_call_output"),
        ([USER, call("1"), USER, output("1")], "the call '1' has no"),
        ([USER, call("1"), WHY, output("1")], "the call '1' has no"),
        ([USER, output("1")], r"input\[1\]: there is no call with call_id '1'"),
        ([call("1"), output("1"), output("1")], r"input\[2\]: there is no call"),
        ([call("")], r"input\[0\]: a function_call has a call_id and a name"),
        ([call("1", name=None)], r"input\[0\]: a function_call has a call_id and a name"),
        ([{"type": "web_search_call", "id": "ws_1"}], r"input\[0\]: the type 'web_search_call'"),
        ([USER, {"id": "msg_1"}], r"input\[1\]: the type 'item_reference'"),
        ([{"role": "tool", "content": "x"}], "role must be one of user, assistant"),
        ([{"content": "x"}], "role must be one of"),
        ([{"role": "user"}], r"input\[0\].content is missing"),
        (
            [USER, {"role": "user", "content": [{"type": "input_image"}]}],
            r"input\[1\].content\[0\]: the type 'input_image' is not supported",
        ),
        ([call("1"), output("1", [{"type": "input_file"}])], r"input\[1\].output\[0\]: the type"),
    ],
)
def test_what_no_conversation_can_be_is_refused_with_its_place(
    items: list[Json], told: str
) -> None:
    with pytest.raises(BadRequest, match=told) as refused:
        chat(items)
    assert refused.value.param == "input"
