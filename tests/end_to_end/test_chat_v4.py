"""V4's chat format end to end: OpenAI's client, a real server, and the stand-in's tokens.

The stand-in writes nonsense, so logit biases say which control tokens it writes.
"""

import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from openai.types.chat.chat_completion_tool_param import ChatCompletionToolParam

from tests.end_to_end.pools import wait_idle
from tests.testing.server_process import ServerProcess
from tests.testing.stand_in.tokenizer import EOS_ID, SPECIALS, THINK_END_ID

DSML_ID = SPECIALS.index("｜DSML｜")
HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"page": {"type": "integer"}}},
        },
    }
]
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server(stand_in_server: ServerProcess) -> ServerProcess:
    """The stand-in, served."""
    return stand_in_server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    """The client as a user makes it."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def told(reply: ChatCompletion, name: str) -> Any:
    """Return an extension field of the first message."""
    return (reply.choices[0].message.model_extra or {}).get(name)


def test_the_format_is_told(server: ServerProcess) -> None:
    assert server.get("/model_info")["chat_format"] == "deepseek_v4"


def test_thinking_is_on_unless_it_is_turned_off(client: openai.OpenAI) -> None:
    thinking = client.chat.completions.create(
        model="default", messages=HI, max_tokens=8, logit_bias={str(THINK_END_ID): -100}
    )
    chatting = client.chat.completions.create(
        model="default",
        messages=HI,
        max_tokens=8,
        extra_body={"chat_template_kwargs": {"thinking": False}},
    )

    assert told(thinking, "reasoning_content")
    assert thinking.choices[0].message.content == ""
    assert thinking.usage is not None
    assert thinking.usage.completion_tokens_details is not None
    assert thinking.usage.completion_tokens_details.reasoning_tokens == 8
    assert told(chatting, "reasoning_content") is None
    assert chatting.choices[0].message.content


def test_a_stream_tells_reasoning_and_content_as_the_whole_does(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "default",
        "messages": HI,
        "max_tokens": 40,
        "seed": 6,
        "logit_bias": {str(THINK_END_ID): 6, str(EOS_ID): -100},
        "reasoning_effort": "low",
    }
    whole: ChatCompletion = client.chat.completions.create(**asked)
    reasoning = content = ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        delta = chunk.choices[0].delta
        reasoning += (delta.model_extra or {}).get("reasoning_content", "")
        content += delta.content or ""

    assert reasoning == told(whole, "reasoning_content")
    assert content == whole.choices[0].message.content
    assert content


def test_a_conversation_with_tools_goes_on(client: openai.OpenAI) -> None:
    history: list[ChatCompletionMessageParam] = [
        *HI,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "look_up", "arguments": '{"page": 3}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "It was closed."},
    ]

    reply = client.chat.completions.create(
        model="default", messages=history, tools=TOOLS, max_tokens=4
    )

    assert reply.choices[0].finish_reason == "length"


def test_markup_never_leaks_with_tools_or_without(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "default",
        "messages": HI,
        "max_tokens": 5,
        "logit_bias": {str(DSML_ID): 100},
        "extra_body": {"thinking": {"type": "disabled"}},
    }

    offered: ChatCompletion = client.chat.completions.create(**asked, tools=TOOLS)
    plain: ChatCompletion = client.chat.completions.create(**asked)

    assert offered.choices[0].message.content == ""
    assert plain.choices[0].message.content == ""


def test_the_turn_after_dropped_reasoning_finds_the_answer_in_the_cache(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me of it."}]
    before = wait_idle(server)
    first = client.chat.completions.create(
        model="default",
        messages=messages,
        max_tokens=600,
        seed=1,
        logit_bias={str(THINK_END_ID): 8, str(EOS_ID): 5},
        extra_body={"min_tokens": 80},
    )
    assert first.choices[0].finish_reason == "stop"
    answer = first.choices[0].message.content or ""
    after = _wait_until_ended(server, before["background_requests"] + 1)
    assert after["requests"] - before["requests"] == 1
    assert after["finished_requests"] - before["finished_requests"] == 1

    then = client.chat.completions.create(
        model="default",
        messages=[
            *messages,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "And then?"},
        ],
        max_tokens=1,
    )

    assert then.usage is not None
    assert then.usage.prompt_tokens_details is not None
    assert len(answer) > 100
    new = then.usage.prompt_tokens - (then.usage.prompt_tokens_details.cached_tokens or 0)
    assert new < 16


def _state(server: ServerProcess) -> dict[str, float]:
    return server.get("/server_info")["internal_states"][0]


def _wait_until_ended(server: ServerProcess, background: float) -> dict[str, float]:
    """Return the state once the scheduler prefilled so often by itself, and nothing is left."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        state = _state(server)
        idle = not state["running"] and not state["waiting"]
        if state["background_requests"] >= background and idle:
            return state
        time.sleep(0.05)
    raise AssertionError("nothing was prefilled ahead")


def test_a_response_that_is_continued_is_found_in_the_cache(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "default",
        "instructions": "Tell what the book of the old house says. " * 4,
        "reasoning": {"effort": "none"},
        "max_output_tokens": 20,
        "extra_body": {"logit_bias": {str(EOS_ID): -100, str(DSML_ID): -100}},
    }
    first = client.responses.create(input="Hello", **asked)
    then = client.responses.create(input="And?", previous_response_id=first.id, **asked)

    assert first.usage is not None
    assert then.usage is not None
    assert then.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
