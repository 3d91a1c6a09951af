"""Calls of tools through the official clients, from a scripted model: their values, as they come.

The model writes values in ways that contradict the tool's schema; a validator is the judge.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from anthropic.types import Message, ToolUseBlock
from jsonschema import Draft202012Validator

from runtime.chat.call_values import is_json
from runtime.server.messages_api import PING
from runtime.server.replies import EventStream
from tests.runtime.chat.schemas import near_value, random_root
from tests.runtime.server.engine import Server, serving

Json = dict[str, Any]
Clients = tuple[Server, openai.AsyncOpenAI, anthropic.AsyncAnthropic]

PARAMETER = '<｜DSML｜parameter name="{}"{}>{}</｜DSML｜parameter>\n'
INVOKE = '<｜DSML｜invoke name="f">\n{}</｜DSML｜invoke>\n'
BLOCK = "why</think>so\n\n<｜DSML｜tool_calls>\n{}</｜DSML｜tool_calls>"


@asynccontextmanager
async def scripted(app: "Recorder | None" = None) -> AsyncIterator[Clients]:
    """Yield a server whose model says what its script has, and the official clients of it.

    app  passes all requests on to the server
    """
    async with serving(v4=True) as server:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app or server.app))
        one = openai.AsyncOpenAI(
            base_url="http://localhost/v1", api_key="none", max_retries=0, http_client=http
        )
        other = anthropic.AsyncAnthropic(
            base_url="http://localhost", api_key="none", max_retries=0, http_client=http
        )
        async with one, other:
            yield server, one, other


async def by_openai(clients: Clients, schema: Json) -> tuple[list[str], list[str]]:
    """Return the arguments of each call, whole and streamed."""
    _, client, _ = clients
    asked: Json = {
        "model": "default",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    }
    whole = (await client.chat.completions.create(**asked)).choices[0]
    async with client.chat.completions.stream(**asked) as stream:
        events = [event.type async for event in stream]
        streamed = (await stream.get_final_completion()).choices[0]

    assert whole.finish_reason == streamed.finish_reason == "tool_calls"
    assert whole.message.content == streamed.message.content == "so"
    told = [
        [call.function.arguments for call in choice.message.tool_calls or ()]
        for choice in (whole, streamed)
    ]
    assert events.count("tool_calls.function.arguments.done") == len(told[1])
    return told[0], told[1]


async def by_anthropic(clients: Clients, schema: Json) -> tuple[list[Any], list[Any]]:
    """Return the input of each call, whole and streamed."""
    _, _, client = clients
    asked: Json = {
        "model": "default",
        "max_tokens": 4000,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "f", "input_schema": schema}],
    }
    whole: Message = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()

    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    told: list[list[Any]] = []
    for message in (whole, streamed):
        calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
        assert all(call.id.startswith("toolu_") for call in calls)
        told.append([call.input for call in calls])
    return told[0], told[1]


def drawn(random: Random) -> tuple[Json, list[Json], str]:
    """Return a tool's schema, the two readings of each argument by call, and what is written."""
    root = random_root(random)
    definitions = root.pop("$defs")
    schema = {"type": "object", "properties": {"a": root, "input": root}, "$defs": definitions}
    calls: list[Json] = []
    written = ""
    for _ in range(random.randint(1, 2)):
        inside, readings = "", Json()
        for name in random.sample(("a", "input"), random.randint(0, 2)):
            value = near_value(random)
            text = value if isinstance(value, str) else json.dumps(value)
            kind = random.choice(("true", "false"))
            inside += PARAMETER.format(name, f' string="{kind}"', text)
            readings[name] = [text, json.loads(text)] if is_json(text) else [text]
        calls.append(readings)
        written += INVOKE.format(inside)
    return schema, calls, BLOCK.format(written)


def test_values_fit_their_schema_whole_and_streamed_for_both_clients() -> None:
    async def scenario() -> None:
        fitting = 0
        async with asyncio.timeout(120), scripted() as clients:
            for seed in range(50):
                random = Random(seed)
                schema, calls, clients[0].engine.reply = drawn(random)
                clients[0].engine.step = random.choice((1, 2, 7, 1000))

                whole, streamed = await by_openai(clients, schema)

                assert whole == streamed, seed
                told = [json.loads(text) for text in whole]
                assert await by_anthropic(clients, schema) == (told, told), seed
                for arguments, readings in zip(told, calls, strict=True):
                    assert arguments.keys() == readings.keys(), seed
                    for name, some in readings.items():
                        part = {**schema["properties"][name], "$defs": schema["$defs"]}
                        valid = Draft202012Validator(part).is_valid
                        if any(map(valid, some)):
                            fitting += 1
                            assert valid(arguments[name]), (seed, name)
        assert fitting > 15

    asyncio.run(scenario())


class Recorder:
    """Keeps what the application `app` sends."""

    def __init__(self) -> None:
        self.app: Any = None
        self.sent = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer as the application does."""

        async def record(message: Any) -> None:
            self.sent += message.get("body", b"")
            await send(message)

        await self.app(scope, receive, record)


@pytest.mark.parametrize("queued", [True, False])
def test_a_silent_stream_is_kept_alive_for_both_clients(
    monkeypatch: pytest.MonkeyPatch, queued: bool
) -> None:
    """Silent before its first event, as in the queue, or after it, as while a call is written."""
    quick = partial(EventStream, keep_alive_s=0.01)
    monkeypatch.setattr("runtime.server.replies._REFUSAL_GRACE_S", 0.01)
    for module in ("routes", "messages_api", "completions"):
        monkeypatch.setattr(f"runtime.server.{module}.EventStream", quick)

    async def scenario() -> None:
        app = Recorder()
        async with asyncio.timeout(60), scripted(app) as (server, one, other):
            say, held = server.engine.send, list[Any]()
            monkeypatch.setattr(server.engine, "send", held.append if queued else say)

            async def texts(start: Awaitable[Any], keep_alive: bytes) -> list[Any]:
                """Return a stream's events, of which all but the first come late."""
                app.sent = b""
                server.engine.hold.clear()
                reading = asyncio.ensure_future(_all_of(start))
                while app.sent.count(keep_alive) < 3:
                    await asyncio.sleep(0.001)
                server.engine.hold.set()
                for message in held:
                    say(message)
                held.clear()
                return await reading

            asked: Json = {"model": "default", "messages": [{"role": "user", "content": "Hi"}]}
            app.app = server.app
            server.engine.reply = "why</think>hello"
            chunks = await texts(
                one.chat.completions.create(**asked, stream=True), b": keep-alive\n\n"
            )
            assert "".join(c.choices[0].delta.content or "" for c in chunks) == "hello"
            events = await texts(other.messages.create(**asked, max_tokens=99, stream=True), PING)
            assert [event.type for event in events][-1] == "message_stop"
            chunks = await texts(
                one.completions.create(model="default", prompt="a", stream=True),
                b": keep-alive\n\n",
            )
            assert "".join(chunk.choices[0].text for chunk in chunks) == "whyhello"

    asyncio.run(scenario())


async def _all_of(start: Awaitable[Any]) -> list[Any]:
    return [event async for event in await start]
