"""Anthropic's own client: messages, streams, thinking, tools, counts, models, errors.

Most of it runs against a real server with the stand-in, which writes nonsense, so that logit
biases say which control tokens it writes. Tools run on a scripted engine, since it never calls any.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, MessageParam, ThinkingBlock, ToolParam, ToolUseBlock

from runtime.server.messages_thinking import recall
from tests.end_to_end.conftest import KEY
from tests.end_to_end.grammar_cases import NO_BLANKS
from tests.runtime.server.engine import Server, serving
from tests.testing.server_process import ServerProcess
from tests.testing.stand_in.tokenizer import EOS_ID, THINK_END_ID

HI: list[MessageParam] = [{"role": "user", "content": "Hello"}]
VOWELS = ["e", "a", "o", "i"]
OFF: Any = {"type": "disabled"}
# The client has no parameter for it any more.
GREEDY = {"temperature": 0}
LOOK_UP: ToolParam = {
    "name": "look_up",
    "description": "Looks a page up.",
    "input_schema": {"type": "object", "properties": {"page": {"type": "integer"}}},
}
JUDGE: ToolParam = {
    "name": "judge",
    "input_schema": {
        "type": "object",
        "properties": {"verdict": {"type": "string", "enum": ["yes", "no"]}},
        "required": ["verdict"],
        "additionalProperties": False,
    },
}
CALL = (
    "why</think>I look.\n\n<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="look_up">\n'
    '<｜DSML｜parameter name="page" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)


@pytest.fixture(scope="module")
def server(keyed_server: ServerProcess) -> ServerProcess:
    """A server that wants a key."""
    return keyed_server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    """The client as a user makes it."""
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: anthropic.Anthropic) -> str:
    """The first model listed."""
    return client.models.list().data[0].id


def kinds(message: Message) -> list[str]:
    return [block.type for block in message.content]


def thought(message: Message) -> ThinkingBlock:
    """Return its only thinking."""
    [block] = [block for block in message.content if isinstance(block, ThinkingBlock)]
    return block


def text(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_is_answered_and_counted(client: anthropic.Anthropic, model: str) -> None:
    reply = client.messages.create(
        model=model, max_tokens=8, messages=HI, system="Be brief.", thinking=OFF, extra_body=GREEDY
    )

    assert (reply.type, reply.role, kinds(reply)) == ("message", "assistant", ["text"])
    assert reply.stop_reason == "max_tokens"
    assert reply.usage.output_tokens == 8
    assert reply.usage.cache_creation_input_tokens == 0


def test_a_stream_has_the_events_that_its_client_wants_in_order(
    client: anthropic.Anthropic, model: str
) -> None:
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 40,
        "messages": HI,
        "output_config": {"effort": "low"},
        "extra_body": {"seed": 6, "logit_bias": {str(THINK_END_ID): 6, str(EOS_ID): -100}},
    }
    whole: Message = client.messages.create(**asked)
    raw = list(client.messages.create(**asked, stream=True))
    with client.messages.stream(**asked) as stream:
        spoken = "".join(stream.text_stream)
        final = stream.get_final_message()

    assert kinds(whole) == ["thinking", "text"]
    assert thought(final).thinking == thought(whole).thinking
    assert thought(final).signature == final.id
    assert kinds(final) == kinds(whole)
    assert spoken == text(final) == text(whole)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.output_tokens_details == whole.usage.output_tokens_details
    order = [event.type for event in raw if event.type != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert order == ["message_start", *block, *block, "message_delta", "message_stop"]


def test_thinking_is_told_or_left_out_as_asked(client: anthropic.Anthropic, model: str) -> None:
    def think(thinking: Any) -> Message:
        bias = {str(THINK_END_ID): -100, str(EOS_ID): 8}
        return client.messages.create(
            model=model,
            messages=HI,
            thinking=thinking,
            extra_body={"logit_bias": bias, "seed": 1, "min_tokens": 20},
            max_tokens=1030,
            stop_sequences=VOWELS,  # Thinking is not searched.
        )

    shown = think({"type": "enabled", "budget_tokens": 1024})
    hidden = think({"type": "adaptive", "display": "omitted"})

    for reply in (shown, hidden):
        assert kinds(reply) == ["thinking"]
        assert reply.stop_reason == "end_turn"
        assert reply.usage.output_tokens_details is not None
        assert reply.usage.output_tokens_details.thinking_tokens == reply.usage.output_tokens
    assert any(vowel in thought(shown).thinking for vowel in VOWELS)
    assert thought(hidden).thinking == ""
    assert recall("", thought(hidden).signature) == thought(shown).thinking


def test_a_stop_sequence_is_told(client: anthropic.Anthropic, model: str) -> None:
    asked: dict[str, Any] = {
        "model": model, "max_tokens": 60, "messages": HI, "thinking": OFF, "extra_body": GREEDY,
    }  # fmt: skip
    whole = text(client.messages.create(**asked))
    wanted = whole[4:7]

    reply = client.messages.create(**asked, stop_sequences=[wanted])

    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", wanted)
    assert text(reply) == whole[: whole.index(wanted)]


def test_an_answer_goes_on_from_its_beginning(client: anthropic.Anthropic, model: str) -> None:
    begun: list[MessageParam] = [*HI, {"role": "assistant", "content": "I say"}]

    reply = client.messages.create(model=model, max_tokens=3, messages=begun, thinking=OFF)

    assert kinds(reply) == ["text"]


def test_what_was_read_from_the_cache_is_counted_apart(
    client: anthropic.Anthropic, model: str
) -> None:
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 0,
        "messages": [{"role": "user", "content": "Tell me of lazy dogs. " * 30}],
        "thinking": OFF,
        "system": [
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
    }
    prompt: dict[str, Any] = {name: asked[name] for name in asked if name != "max_tokens"}
    counted = client.messages.count_tokens(**prompt)
    cold: Message = client.messages.create(**asked)
    asked["max_tokens"] = 2
    warm: Message = client.messages.create(**asked)

    assert cold.content == []
    assert cold.usage.input_tokens + (cold.usage.cache_read_input_tokens or 0) == (
        counted.input_tokens
    )
    assert warm.usage.cache_read_input_tokens == counted.input_tokens - 1
    assert warm.usage.input_tokens == 1


def test_the_beta_client_is_answered_too(client: anthropic.Anthropic, model: str) -> None:
    reply = client.beta.messages.create(
        model=model,
        max_tokens=3,
        messages=[{"role": "user", "content": "Hello"}],
        thinking={"type": "disabled"},
        betas=["context-management-2025-06-27"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "u"},
    )

    assert [block.type for block in reply.content] == ["text"]


def test_a_call_can_be_forced(client: anthropic.Anthropic, model: str) -> None:
    one = {"disable_parallel_tool_use": True}
    choices: list[Any] = [{"type": "any", **one}, {"type": "tool", "name": "judge", **one}]
    for choice in choices:
        reply = client.messages.create(
            model=model,
            max_tokens=300,
            messages=HI,
            thinking=OFF,
            tools=[JUDGE],
            tool_choice=choice,
            extra_body={"logit_bias": NO_BLANKS},
        )

        assert reply.stop_reason == "tool_use"
        [call] = [block for block in reply.content if block.type == "tool_use"]
        assert call.name == "judge"
        assert call.input["verdict"] in ("yes", "no")


def test_an_output_follows_its_schema(client: anthropic.Anthropic, model: str) -> None:
    schema = dict(JUDGE["input_schema"])

    reply = client.messages.create(
        model=model,
        max_tokens=300,
        messages=HI,
        thinking=OFF,
        output_config={"format": {"type": "json_schema", "schema": schema}},
        extra_body={"logit_bias": NO_BLANKS},
    )

    assert reply.stop_reason == "end_turn"
    assert json.loads(text(reply))["verdict"] in ("yes", "no")


def test_models_are_listed_and_found(client: anthropic.Anthropic, model: str) -> None:
    listed = list(client.models.list(limit=5))
    found = client.models.retrieve(model)

    assert [entry.id for entry in listed] == [found.id] == [model]
    assert (found.type, found.lifecycle, found.display_name) == ("model", "active", model)
    assert found.created_at.tzinfo is not None
    assert found.max_input_tokens is not None


def test_errors_arrive_as_the_clients_own_exceptions(
    client: anthropic.Anthropic, server: ServerProcess, model: str
) -> None:
    cold = {"temperature": -1}
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model=model, max_tokens=4, messages=HI, extra_body=cold)
    assert (refused.value.type, refused.value.status_code) == ("invalid_request_error", 400)
    assert "temperature" in refused.value.message

    image: Any = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    shown: list[MessageParam] = [{"role": "user", "content": [image]}]
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(model=model, max_tokens=4, messages=shown)

    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="no-such-model", max_tokens=4, messages=HI)
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.models.retrieve("no-such-model")
    assert missing.value.type == "not_found_error"

    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError) as unknown:
        stranger.messages.create(model=model, max_tokens=4, messages=HI)
    assert unknown.value.type == "authentication_error"
    bearer = anthropic.Anthropic(base_url=server.url, auth_token=KEY, max_retries=0)
    with bearer:
        assert bearer.models.list().data[0].id == model


def test_a_body_without_end_is_too_large(client: anthropic.Anthropic, model: str) -> None:
    endless: list[MessageParam] = [{"role": "user", "content": "x" * (33 << 20)}]

    with pytest.raises(anthropic.APIStatusError) as refused:
        client.messages.create(model=model, max_tokens=4, messages=endless)

    assert (refused.value.status_code, refused.value.type) == (413, "request_too_large")


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Server, anthropic.AsyncAnthropic]]:
    """Yield a server whose model says what its script has, and the client of it."""
    async with serving(v4=True) as server:
        transport = httpx2.ASGITransport(app=server.app)
        client = anthropic.AsyncAnthropic(
            base_url="http://localhost",
            api_key="none",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=transport),
        )
        async with client:
            yield server, client


def run(scenario: Callable[[Server, anthropic.AsyncAnthropic], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), scripted() as (server, client):
            await scenario(server, client)

    asyncio.run(whole())


def test_a_tool_is_called_and_its_result_told_streamed_and_not() -> None:
    async def scenario(server: Server, client: anthropic.AsyncAnthropic) -> None:
        asked: dict[str, Any] = {"model": "default", "max_tokens": 2000, "tools": [LOOK_UP]}
        server.engine.reply = CALL
        whole: Message = await client.messages.create(**asked, messages=HI)
        async with client.messages.stream(**asked, messages=HI) as stream:
            streamed = await stream.get_final_message()

        for message in (whole, streamed):
            assert message.stop_reason == "tool_use"
            assert kinds(message) == ["thinking", "text", "tool_use"]
            [call] = [block for block in message.content if isinstance(block, ToolUseBlock)]
            assert (call.name, call.input) == ("look_up", {"page": 3})

            server.engine.reply = "done</think>It was closed."
            result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "Closed."}
            turns: list[MessageParam] = [
                *HI,
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": [result]},
            ]
            then: Message = await client.messages.create(**asked, messages=turns)
            assert (then.stop_reason, text(then)) == ("end_turn", "It was closed.")

    run(scenario)


def test_the_tool_runner_of_the_client_runs_to_the_end() -> None:
    async def scenario(server: Server, client: anthropic.AsyncAnthropic) -> None:
        pages: list[int] = []

        @anthropic.beta_async_tool
        async def look_up(page: int) -> str:
            """Look a page up.

            Args:
                page: Its number.
            """
            pages.append(page)
            server.engine.reply = "done</think>It was closed."
            return "Closed."

        server.engine.reply = CALL
        runner = client.beta.messages.tool_runner(
            model="default",
            max_tokens=2000,
            tools=[look_up],
            messages=[{"role": "user", "content": "Look page 3 up."}],
        )
        last = await runner.until_done()

        assert pages == [3]
        assert [block.text for block in last.content if block.type == "text"] == ["It was closed."]

    run(scenario)


def test_a_full_queue_and_a_broken_stream_are_the_clients_own_exceptions() -> None:
    async def scenario(server: Server, client: anthropic.AsyncAnthropic) -> None:
        asked: dict[str, Any] = {"model": "default", "max_tokens": 10, "messages": HI}
        server.engine.refuse = "queue_full"
        with pytest.raises(anthropic.RateLimitError) as full:
            await client.messages.create(**asked)
        assert full.value.type == "rate_limit_error"

        server.engine.refuse, server.engine.fail = None, "bad logits"
        stream = await client.messages.create(**asked, stream=True)
        assert (await anext(stream)).type == "message_start"
        with pytest.raises(anthropic.APIStatusError, match="bad logits") as broken:
            _ = [event async for event in stream]
        assert broken.value.type == "api_error"

        server.manager.draining = True
        with pytest.raises(anthropic.ServiceUnavailableError) as leaving:
            await client.messages.create(**asked)
        assert leaving.value.type == "overloaded_error"

    run(scenario)
