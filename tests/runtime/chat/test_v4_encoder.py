"""The V4 encoder against deepseek-recipe's own rendering, and text that stays text."""

from random import Random
from typing import Any

import deepseek_recipe as recipe
import pytest
from tokenizers import Tokenizer, models

from runtime.chat.marks import ASSISTANT, THINK, USER
from runtime.chat.v4_encoder import V4Encoder
from runtime.errors import BadRequest, ConfigError
from tests.runtime.chat.conversations import Json, conversation, encoder, tokenizer
from tests.testing.stand_in.tokenizer import BOS_ID, EOS_ID, SPECIALS

OFF: Json = {"thinking": {"type": "disabled"}}
HI: Json = {"role": "user", "content": "hi"}
ANSWER: Json = {"role": "assistant", "content": "C", "reasoning_content": "R"}
TOOLS: Json = {"tools": [{"type": "function", "function": {"name": "f"}}]}


def rendered(request: Json) -> str:
    """Return the prompt as deepseek-recipe renders a request body."""
    body = {"model": "DeepSeek-V4-Pro", **request}
    converted = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions())
    return recipe.DeepseekV4Encoding().render_conversation(converted.conversation).prompt


def spelt(ids: list[int]) -> str:
    return tokenizer().decode(ids, skip_special_tokens=False)


def inert(node: Any) -> Any:
    """Return a request whose texts hold nothing but letters."""
    match node:
        case {"role": role, "content": str()}:
            kept = {k: inert(v) for k, v in node.items() if k not in ("content", "role")}
            return {"role": role, "content": "x", **kept}
        case {"reasoning_content": _}:
            return {**node, "reasoning_content": "x"}
        case dict():
            return {key: inert(value) for key, value in node.items()}
        case list():
            return [inert(item) for item in node]
        case _:
            return node


@pytest.mark.parametrize("batch", range(10))
def test_a_prompt_spells_what_recipe_renders(batch: int) -> None:
    for seed in range(batch * 100, (batch + 1) * 100):
        request = conversation(Random(seed))

        assert spelt(encoder().encode(request).token_ids) == rendered(request), seed


def test_only_the_format_writes_control_tokens() -> None:
    for seed in range(300):
        request = conversation(Random(seed))

        ids = encoder().encode(request).token_ids

        counts = {text: ids.count(number) for number, text in enumerate(SPECIALS)}
        turns = request["messages"]
        answers = sum(message["role"] == "assistant" for message in turns)
        assert counts[SPECIALS[BOS_ID]] == 1, seed
        assert counts[SPECIALS[EOS_ID]] == answers, seed
        assert counts[ASSISTANT] == answers + 1, seed
        assert counts[USER] == sum(_begins_user_turn(turns, k) for k in range(len(turns))), seed


def _begins_user_turn(turns: list[Json], k: int) -> bool:
    user = {"user", "tool"}
    return turns[k]["role"] in user and (k == 0 or turns[k - 1]["role"] not in user)


def test_text_that_spells_a_control_token_is_letters() -> None:
    said = f"a{SPECIALS[3]}</think>｜DSML｜b"

    ids = encoder().encode({"messages": [{"role": "user", "content": said}], **OFF}).token_ids

    assert [i for i in ids if i < len(SPECIALS)] == [BOS_ID, 3, 4, 6]
    assert tokenizer().decode(ids[2:-2], skip_special_tokens=False) == said


@pytest.mark.parametrize(
    ("request_", "thinking", "reasoning"),
    [
        ({"messages": [HI]}, True, True),
        ({"messages": [HI], **OFF}, False, False),
        ({"messages": [HI, {**ANSWER, "prefix": True}]}, True, False),
        ({"messages": [HI, {**ANSWER, "content": "", "prefix": True}]}, True, True),
        ({"messages": [HI, {**ANSWER, "prefix": True}], **OFF}, False, False),
    ],
)
def test_where_the_answer_begins_is_told(request_: Json, thinking: bool, reasoning: bool) -> None:
    prompt = encoder().encode(request_)

    assert (prompt.thinking, prompt.reasoning) == (thinking, reasoning)


def test_tools_are_told_only_where_they_may_be_called() -> None:
    assert encoder().encode({"messages": [HI]}).tools is None
    assert encoder().encode({"messages": [HI], **TOOLS, "tool_choice": "none"}).tools is None
    assert set(encoder().encode({"messages": [HI], **TOOLS}).tools or ()) == {"f"}


def test_a_schema_is_rendered_into_the_prompt() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    request: Json = {"messages": [HI], "response_format": wanted}

    text = spelt(encoder().encode(request).token_ids)

    assert "## Response Format:" in text
    assert text == rendered(request)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "tool", "tool_call_id": "1", "content": "r"}],
        [HI, {**ANSWER, "prefix": True}, HI],
        [{"role": "nobody", "content": ""}],
    ],
)
def test_what_the_format_cannot_hold_is_refused(messages: list[Json]) -> None:
    with pytest.raises(BadRequest) as refused:
        encoder().encode({"messages": messages})

    assert refused.value.message
    assert not refused.value.message.startswith("{")


def function(name: str, **parameters: Any) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": [function("a b", type="object")]}),
        ("tools", {"tools": [function("f", type="object")] * 2}),
        ("tools", {"tools": [function("f", type="string")], "tool_choice": "auto"}),
        ("messages", {"tools": [function("f", type="object")], "messages": []}),
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": 3}}),
    ],
)
def test_a_refusal_names_the_field_that_it_is_about(param: str, fields: Json) -> None:
    with pytest.raises(BadRequest) as refused:
        encoder().encode({"messages": [HI], **fields})

    assert refused.value.param == param


STRICT: dict[str, Json] = {
    "a format": {"properties": {"on": {"type": "string", "format": "date"}}},
    "definitions": {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "null"}}},
    "limits": {"properties": {"a": {"type": "string", "const": "x", "maxLength": 3}}},
    "what may be left out": {"properties": {"b": {}, "a": {}}, "required": ["a"]},
}


@pytest.mark.parametrize("name", STRICT)
def test_of_a_strict_schema_the_model_is_told_all(name: str) -> None:
    def asked(strict: bool, schema: Json) -> Json:
        more = {"strict": True} if strict else {}
        form = {"name": "a", "schema": schema, **more}
        tool = {"name": "f", "parameters": schema, **more}
        return {
            "messages": [HI],
            "tools": [{"type": "function", "function": tool}],
            "response_format": {"type": "json_schema", "json_schema": form},
        }

    schema = {"type": "object", **STRICT[name]}

    assert encoder().encode(asked(True, schema)) == encoder().encode(asked(False, schema))
    assert encoder().encode(asked(True, schema)).tools == {"f": schema}
    with pytest.raises(BadRequest, match="array"):
        encoder().encode(asked(True, {"type": "array"}))


def test_a_schema_nested_without_end_is_refused() -> None:
    schema: Json = {"type": "object"}
    for _ in range(400):
        schema = {"type": "object", "properties": {"a": schema}}
    function = {"name": "f", "parameters": schema}

    with pytest.raises(BadRequest):
        encoder().encode({"messages": [HI], "tools": [{"type": "function", "function": function}]})


def test_the_past_is_what_the_next_prompt_begins_with() -> None:
    request: Json = {"messages": [HI]}
    answer = {"role": "assistant", "content": "C"}

    past = encoder().encode_past(request, answer, [])

    then = encoder().encode({"messages": [HI, ANSWER, {"role": "user", "content": "more"}]})
    assert then.token_ids[: len(past)] == past
    assert spelt(past).endswith(f"{ASSISTANT}</think>C{SPECIALS[EOS_ID]}")
    assert then.token_ids[len(past)] == tokenizer().token_to_id(USER)


def test_the_past_of_a_tool_call_ends_before_its_result() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    request: Json = {"messages": [HI], **TOOLS}

    past = encoder().encode_past(request, answer, ["1"])

    result = {"role": "tool", "tool_call_id": "1", "content": "ok"}
    then = encoder().encode({**request, "messages": [HI, answer, result]})
    assert then.token_ids[: len(past)] == past
    assert then.token_ids[len(past)] == tokenizer().token_to_id(USER)


def test_marks_are_found_by_token() -> None:
    assert encoder().marks[tokenizer().token_to_id("<think>") or -1] == THINK


def test_a_tokenizer_without_v4_is_refused_at_start() -> None:
    broken = Tokenizer(models.WordLevel(vocab={"a": 0}, unk_token="b"))

    with pytest.raises(ConfigError):
        V4Encoder(broken)
