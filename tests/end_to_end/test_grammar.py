"""Structured output end to end: random weights, real clients, and a grammar that always holds.

The stand-in writes whatever it is let write; what it is let write is what is tested.
"""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from openai.types.chat.chat_completion_tool_param import ChatCompletionToolParam
from openai.types.shared_params import ResponseFormatJSONSchema

from tests.end_to_end.grammar_cases import NO_BLANKS, REGEXES, SCHEMAS, check, params
from tests.testing.server_process import Json, ServerProcess, running_server
from tests.testing.stand_in.tokenizer import (
    DSML_ID,
    EOS_ID,
    THINK_END_ID,
    train_tokenizer,
)

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
CASES = [*SCHEMAS, *REGEXES]
# The stand-in seldom ends a list.
ENDS_LISTS = {str(train_tokenizer().get_vocab()["]"]): 4.0}
# After a call `<` and the mark begin another one, `</` ends them all.
ONE_MORE_CALL = {str(train_tokenizer().encode("<").ids[0]): 20, str(DSML_ID): 20}
ANSWER: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 31},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "weather", "parameters": ANSWER}},
    {"type": "function", "function": {"name": "stop"}},
]
FORMAT: ResponseFormatJSONSchema = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": ANSWER, "strict": True},
}


@pytest.fixture(scope="module")
def server(narrow_stand_in: Path) -> Iterator[ServerProcess]:
    """The stand-in, served; hostile grammars get two seconds."""
    flags = ("--full-pages", "128", "--random-seed", "0", "--grammar-timeout", "2")
    with running_server("--model-path", str(narrow_stand_in), *flags, check=False) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """The client as a user makes it."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def outputs(server: ServerProcess, name: str, count: int, **bias: float) -> list[str]:
    """Return so many outputs of a case; fail unless each ended by itself."""
    asked = {**params(name), "n": count, "temperature": 1.0, "max_new_tokens": 700}
    asked["logit_bias"] = ENDS_LISTS | bias
    replies = server.generate("Once", None, **asked)
    for reply in replies:
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS_ID}, reply
    return [reply["text"] for reply in replies]


def test_every_output_is_what_was_asked_for(server: ServerProcess) -> None:
    """Two of each case, all in one batch."""
    with ThreadPoolExecutor(len(CASES)) as threads:
        found = threads.map(lambda name: outputs(server, name, 2, **NO_BLANKS), CASES)
        texts = dict(zip(CASES, found, strict=True))

    for name, some in texts.items():
        assert len(some) == 2
        for text in some:
            check(name, text)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_thousand_of_a_thousand_validate(server: ServerProcess) -> None:
    each = -(-1000 // len(CASES))

    total = 0
    for name in CASES:
        for text in outputs(server, name, each):
            check(name, text)
            total += 1

    assert total >= 1000


def test_a_hostile_grammar_costs_its_own_request_and_nothing_else(server: ServerProcess) -> None:
    """A free stream goes on from before the first of them to after the last."""
    wide = {"type": "object", "properties": {f"p{i}": {} for i in range(9_000)}}
    deep = '{"items":' * 5_000 + "{}" + "}" * 5_000
    hostile: list[Json] = [
        {"json_schema": wide},
        {"json_schema": deep},
        {"json_schema": {"$ref": "#"}},
        {"regex": "(" * 60_000 + "a" + ")" * 60_000},
        {"regex": "x" * 10_000_000},
        {"regex": "(a{1,1000}"},
        {"ebnf": "root ::= root root"},
        {"structural_tag": {"format": 1}},
    ]
    ended = threading.Event()

    def free() -> tuple[int, str]:
        tokens = 0
        for chunk in server.stream("Once", max_new_tokens=20_000, ignore_eos=True):
            tokens = chunk["meta_info"]["completion_tokens"]
            if ended.is_set():
                return tokens, chunk["text"]
        raise AssertionError("the stream ended first")

    def refused(sampling: Json) -> httpx.Response:
        return server.post("/generate", {"text": "Once", "sampling_params": sampling})

    with ThreadPoolExecutor(len(hostile) + 1) as threads:
        stream = threads.submit(free)
        try:
            replies = list(threads.map(refused, hostile))
        finally:
            ended.set()
        tokens, text = stream.result()

    for sampling, reply in zip(hostile, replies, strict=True):
        assert reply.status_code == 400, (str(sampling)[:80], reply.text[:500])
        assert reply.json()["error"]["message"]
    again = server.generate("Once", max_new_tokens=tokens, ignore_eos=True)
    assert again["text"] == text
    check("phone", outputs(server, "phone", 2)[0])


def test_openais_json_schema_is_held_to_after_the_reasoning(client: openai.OpenAI) -> None:
    reply: ChatCompletion = client.chat.completions.create(
        model="default",
        messages=HI,
        response_format=FORMAT,
        logit_bias={str(THINK_END_ID): 8} | dict.fromkeys(NO_BLANKS, -100),
        max_tokens=900,
        extra_body={"thinking": {"type": "enabled"}},
    )

    assert reply.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(reply.choices[0].message.content or ""), ANSWER)


def test_a_stream_and_several_choices_are_held_to_it_as_well(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="default",
        messages=HI,
        n=3,
        response_format=FORMAT,
        logit_bias=dict.fromkeys(NO_BLANKS, -100),
        max_tokens=300,
        stream=True,
        reasoning_effort="none",
    )

    texts = ["", "", ""]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""

    assert len(set(texts)) > 1
    for text in texts:
        jsonschema.validate(json.loads(text), ANSWER)


def test_a_json_object_is_one(client: openai.OpenAI) -> None:
    """The stand-in seldom closes what it opened: a word for doing so."""
    closing = {str(train_tokenizer().get_vocab()[letter]): 15 for letter in '"}'}
    reply = client.chat.completions.create(
        model="default",
        messages=HI,
        response_format={"type": "json_object"},
        logit_bias=dict.fromkeys(NO_BLANKS, -100) | closing,
        max_tokens=600,
        reasoning_effort="none",
    )

    assert reply.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(reply.choices[0].message.content or ""), dict)


def test_completions_take_grammars_too(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model="default", prompt="Call ", max_tokens=60, extra_body={"regex": REGEXES["phone"]}
    )

    check("phone", reply.choices[0].text)
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("effort", ["none", "low"])
def test_a_required_call_is_made(client: openai.OpenAI, effort: Any) -> None:
    reply = client.chat.completions.create(
        model="default",
        messages=HI,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        logit_bias={str(THINK_END_ID): 8} | dict.fromkeys(NO_BLANKS, -100),
        max_tokens=900,
        reasoning_effort=effort,
    )

    [call] = _calls(reply)
    assert call[0] in ("weather", "stop")
    assert reply.choices[0].message.content is None


def test_the_named_tool_is_called(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="default",
        messages=HI,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "weather"}},
        parallel_tool_calls=False,
        logit_bias=dict.fromkeys(NO_BLANKS, -100),
        max_tokens=400,
        reasoning_effort="none",
    )

    [(name, arguments)] = _calls(reply)
    assert name == "weather"
    jsonschema.validate(arguments, ANSWER)


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {}}])
def test_a_named_tool_without_parameters_is_called_once(
    client: openai.OpenAI, parameters: dict[str, object] | None
) -> None:
    function: Any = {"name": "stop"} | ({} if parameters is None else {"parameters": parameters})
    reply = client.chat.completions.create(
        model="default",
        messages=HI,
        tools=[{"type": "function", "function": function}],
        tool_choice={"type": "function", "function": {"name": "stop"}},
        max_tokens=400,
        reasoning_effort="none",
    )

    assert _calls(reply) == [("stop", {})]


def test_required_calls_without_parameters_do_not_repeat_each_other(client: openai.OpenAI) -> None:
    """One of each is enough, however likely one more is."""
    reply = client.chat.completions.create(
        model="default",
        messages=HI,
        tools=[{"type": "function", "function": {"name": name}} for name in ("stop", "go")],
        tool_choice="required",
        logit_bias=ONE_MORE_CALL,
        max_tokens=600,
        reasoning_effort="none",
    )

    assert len(_calls(reply)) == 2


@pytest.mark.slow
def test_required_calls_come_to_an_end(client: openai.OpenAI) -> None:
    flag: Json = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    reply = client.chat.completions.create(
        model="default",
        messages=HI,
        tools=[{"type": "function", "function": {"name": "set", "parameters": flag}}],
        tool_choice="required",
        logit_bias=ONE_MORE_CALL | dict.fromkeys(NO_BLANKS, -100),
        max_tokens=3000,
        reasoning_effort="none",
    )

    assert len(_calls(reply)) == 16


def test_a_free_answer_calls_strict_tools_as_their_schemas_say(client: openai.OpenAI) -> None:
    def ask(seed: int, *, strict: bool, calling: int) -> ChatCompletion:
        function: Any = {"name": "weather", "parameters": ANSWER, "strict": strict}
        return client.chat.completions.create(
            model="default",
            messages=HI,
            tools=[{"type": "function", "function": function}],
            parallel_tool_calls=False,
            logit_bias=dict.fromkeys(NO_BLANKS, -100) | {str(DSML_ID): calling},
            max_tokens=300 if strict else 60,
            seed=seed,
            reasoning_effort="low" if seed % 2 else "none",
        )

    for seed in range(2):
        found = _calls(ask(seed, strict=True, calling=9))
        assert {name for name, _ in found} == {"weather"}
        for _, arguments in found:
            jsonschema.validate(arguments, ANSWER)
    assert ask(0, strict=False, calling=9).choices[0].message.tool_calls is None


def _calls(reply: ChatCompletion) -> list[tuple[str, Any]]:
    """Return name and arguments of each call; an answer of calls says so."""
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls", choice
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in choice.message.tool_calls or []
        if call.type == "function"
    ]


def test_an_output_cut_short_says_so(server: ServerProcess) -> None:
    reply = server.generate("Once", regex="[a-z]{40}", max_new_tokens=3)

    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
    assert re.fullmatch("[a-z]{3,40}", reply["text"])


def test_a_wrong_grammar_is_told_to_the_openai_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="parenthesis") as refused:
        client.completions.create(model="default", prompt="x", extra_body={"regex": "(("})

    assert (refused.value.code, refused.value.param) == ("invalid_grammar", "regex")


def test_what_vllms_clients_send_is_told_what_to_send_here(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="use regex") as refused:
        client.completions.create(model="default", prompt="x", extra_body={"guided_regex": "a"})

    assert refused.value.param == "guided_regex"


LOOK_AHEAD: Json = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=b)"}}}
REFUSED: dict[str, tuple[str, Json]] = {
    "response_format": (
        "/v1/chat/completions",
        {
            "messages": HI,
            "response_format": {"type": "json_schema", "json_schema": {"schema": LOOK_AHEAD}},
        },
    ),
    "json_schema": (
        "/v1/completions",
        {"prompt": "Once", "json_schema": LOOK_AHEAD},
    ),
    "tools": (
        "/v1/chat/completions",
        {
            "messages": HI,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": LOOK_AHEAD}}],
            "tool_choice": "required",
        },
    ),
}


@pytest.mark.parametrize("param", REFUSED)
def test_a_refusal_names_the_keyword_and_where_it_stands(server: ServerProcess, param: str) -> None:
    route, body = REFUSED[param]
    reply = server.post(route, {"model": "default", **body})

    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == param
    where = "the parameter 'a' of tool 'f': " if param == "tools" else "#/properties/a: "
    assert error["message"].startswith(where)
    assert "'pattern'" in error["message"] or param == "tools"
    assert "'(?=', a look-ahead" in error["message"]
