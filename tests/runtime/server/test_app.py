"""Tests of runtime.server.app: documentation, and OpenAI's own client against a real socket."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from fastapi.routing import APIRoute

from runtime.config import ServerConfig
from runtime.errors import ConfigError
from tests.runtime.server.engine import Server, served, serving

CONFIG = ServerConfig(model_path="/m", served_model_name="tiny", api_key="sk-1")


@served()
async def test_the_documentation_knows_every_body(server: Server) -> None:
    document = (await server.client.get("/openapi.json")).json()

    for path, field in (("/generate", "input_ids"), ("/v1/chat/completions", "messages")):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert field in body["schema"]["properties"]
    assert "$ref" not in str(document["paths"])
    assert (await server.client.get("/docs")).status_code == 200


def operations(server: Server, document: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield path, method and what `document` says, for every route there is."""
    for route in server.app.routes:
        if isinstance(route, APIRoute):
            for method in route.methods or ():
                path = route.path.replace(":path", "")
                yield path, method, document["paths"][path][method.lower()]


@served()
async def test_the_documentation_knows_every_route_and_its_parameters(server: Server) -> None:
    document = (await server.client.get("/openapi.json")).json()
    found = list(operations(server, document))

    assert {"/generate", "/v1/messages", "/v1/models/{name}"} <= {path for path, _, _ in found}
    for path, method, operation in found:
        assert operation["summary"], path
        reads = method in ("POST", "PUT") and path not in ("/flush_cache", "/stop_profile")
        assert ("requestBody" in operation) == reads, path
        named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path))
    assert len({operation["operationId"] for _, _, operation in found}) == len(found)
    assert document["paths"]["/cache"]["get"]["parameters"][0]["name"] == "max_spans"


@served()
async def test_every_field_in_the_documentation_is_one_that_is_read(server: Server) -> None:
    """Whoever reads a field checks its type: a field that says it is no object refuses one."""
    document = (await server.client.get("/openapi.json")).json()
    wrong = {"no": "such thing"}
    checked = 0

    for path, method, operation in operations(server, document):
        if "requestBody" not in operation:
            continue
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        for name, shape in schema["properties"].items():
            kinds = {one.get("type") for one in shape.get("anyOf", [shape])}
            if None in kinds or "object" in kinds:
                continue
            reply = await server.client.request(method, path, json={name: wrong})
            assert reply.status_code == 400, f"{path} {name}"
            assert f"{name}: Expected" in reply.json()["error"]["message"], f"{path} {name}"
            checked += 1

    assert checked > 100


def test_a_template_that_is_none_stops_the_start() -> None:
    async def scenario() -> None:
        async with serving(template="{% if %}"):
            pass

    with pytest.raises(ConfigError):
        asyncio.run(scenario())


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    """Serve on a free loopback port, and give OpenAI's client of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = uvicorn.Server(uvicorn.Config(server.app, log_config=None, ws="none"))
        serving_task = asyncio.ensure_future(web.serve(sockets=[listener]))
        port = listener.getsockname()[1]
        try:
            async with openai.AsyncOpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-1", max_retries=0, timeout=60
            ) as client:
                yield client
        finally:
            web.should_exit = True
            await serving_task


@served(CONFIG)
async def test_openais_client_works_unmodified(server: Server) -> None:
    async with client_of(server) as client:
        models = await client.models.list()
        assert [model.id for model in models.data] == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "sglang"

        completion = await client.completions.create(
            model="tiny", prompt=["a", "b"], n=2, logprobs=2, echo=True, max_tokens=4
        )
        assert [choice.text for choice in completion.choices] == ["ahell"] * 2 + ["bhell"] * 2
        assert completion.choices[0].logprobs is not None
        assert completion.usage is not None
        assert completion.usage.prompt_tokens == 2

        chat = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            logprobs=True,
            top_logprobs=1,
            extra_body={"top_k": 5},
        )
        assert chat.choices[0].message.content == "hello"
        assert chat.choices[0].finish_reason == "stop"
        assert chat.choices[0].logprobs is not None
        assert server.engine.requests[-1].sampling.top_k == 5


@served(CONFIG)
async def test_what_is_read_by_get_can_be_asked_for_its_head(server: Server) -> None:
    paths = [
        route.path.replace("{name:path}", "tiny")
        for route in server.app.routes
        if isinstance(route, APIRoute) and route.methods == {"GET"}
    ]
    key = {"Authorization": "Bearer sk-1"}

    async with client_of(server) as client, httpx.AsyncClient(headers=key, timeout=60) as plain:
        for path in (*paths, "/v1/models/other"):
            url = str(client.base_url.join(path))
            whole, head = await plain.get(url), await plain.head(url)
            assert (head.status_code, head.content) == (whole.status_code, b""), path
            assert head.headers.get("content-type") == whole.headers.get("content-type"), path
        flush = await plain.head(str(client.base_url.join("/flush_cache")))
        assert flush.status_code == 405  # which changes something

    assert len(paths) > 15


@served(CONFIG)
async def test_openais_client_streams(server: Server) -> None:
    async with client_of(server) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage, reasons = "", None, []
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons.append(choice.finish_reason)
        assert (text, reasons[-1]) == ("hello", "stop")
        assert usage is not None
        assert usage.completion_tokens == 6

        pieces = [
            chunk.choices[0].text
            async for chunk in await client.completions.create(
                model="tiny", prompt="hi", stream=True
            )
        ]
        assert "".join(pieces) == "hello"


@served(CONFIG)
async def test_openais_client_raises_its_own_errors(server: Server) -> None:
    async with client_of(server) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.completions.create(model="gpt-4", prompt="x")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model="tiny", prompt="x", temperature=-1)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="sk-2").models.list()
        server.engine.refuse = "queue_full"
        with pytest.raises(openai.RateLimitError):
            await client.completions.create(model="tiny", prompt="x")
        server.engine.refuse = None
        server.engine.fail = "broke"
        with pytest.raises(openai.APIError, match="broke"):
            async for _ in await client.completions.create(model="tiny", prompt="x", stream=True):
                pass


@served(CONFIG)
async def test_a_client_that_hangs_up_frees_its_request(server: Server) -> None:
    server.engine.hold.clear()
    async with client_of(server) as client:
        stream = await client.completions.create(model="tiny", prompt="x", stream=True)
        await anext(aiter(stream))
        await stream.close()
        while server.manager.in_flight:
            await asyncio.sleep(0.005)
        assert len(server.engine.aborted) == 1
