"""The client against a server that answers by script: every dialect, in any pieces."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.bench.serving.client import Client, StreamLines
from tests.bench.serving.dialects import make_dialect
from tests.bench.serving.fake_server import FakeServer, fake_server
from tests.bench.serving.options import APIS
from tests.bench.serving.outcome import Outcome
from tests.bench.serving.prompt import Prompt
from tests.bench.serving.server_facts import ask_facts
from tests.bench.serving.workload import Call

PROMPT = Prompt.begin(Call([5, 6], 4, system=[1, 2, 3]))


def with_server(test: Callable[[FakeServer, Client], Awaitable[None]]) -> None:
    """Run `test` with a server and a client of it."""

    async def scenario() -> None:
        async with (
            asyncio.timeout(60),
            fake_server() as server,
            Client(server.url + "/v1", headers={"Authorization": "Bearer k"}) as client,
        ):
            await test(server, client)

    asyncio.run(scenario())


@pytest.mark.parametrize("cut", [0, 7])
@pytest.mark.parametrize("api", APIS)
def test_every_dialect_is_read_the_same(api: str, cut: int) -> None:
    async def test(server: FakeServer, client: Client) -> None:
        server.cut = cut
        outcome = await client.send(make_dialect(api, "fake"), PROMPT, 4)

        assert outcome.error is None
        assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.generated) == (5, 3, 4)
        assert [tokens for _, tokens in outcome.arrivals] == [1, 2, 3, 4]
        assert outcome.sent_s < outcome.arrivals[0][0] <= outcome.arrivals[-1][0] < outcome.ended_s
        if api == "chat":
            assert outcome.answer_text == "w0 w1 w2 w3 "
        else:
            assert outcome.answer_ids == [100, 101, 102, 103]

    with_server(test)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_plain_openai_sends_nothing_of_its_own_and_counts_chunks(api: str) -> None:
    async def test(server: FakeServer, client: Client) -> None:
        outcome = await client.send(make_dialect(api, "fake", plain=True), PROMPT, 4)

        known = {"model", "max_tokens", "temperature", "stream", "stream_options"}
        assert server.bodies[0].keys() - known in ({"prompt"}, {"messages"})
        assert server.bodies[0]["stream_options"] == {"include_usage": True}
        assert [tokens for _, tokens in outcome.arrivals] == [1, 2, 3, 4]

    with_server(test)


def test_ids_go_where_ids_are_taken_and_extra_fields_everywhere() -> None:
    async def test(server: FakeServer, client: Client) -> None:
        for api in APIS:
            await client.send(make_dialect(api, "fake", extra={"priority": 3}), PROMPT, 1)

        native, completions, chat = server.bodies
        assert native["input_ids"] == completions["prompt"] == [1, 2, 3, 5, 6]
        assert [message["role"] for message in chat["messages"]] == ["system", "user"]
        assert all(body["priority"] == 3 for body in server.bodies)

    with_server(test)


@pytest.mark.parametrize("api", APIS)
def test_failures_are_outcomes(api: str) -> None:
    async def test(server: FakeServer, client: Client) -> None:
        dialect = make_dialect(api, "fake")
        server.break_off = True
        broken = await client.send(dialect, PROMPT, 4)
        server.refuse = 429
        refused = await client.send(dialect, PROMPT, 4)

        assert broken.error is not None
        assert "broke" in broken.error
        assert refused.error == '429 {"error":{"message":"no"}}'

    with_server(test)


@pytest.mark.parametrize("api", APIS)
def test_an_answer_that_the_server_gave_up_is_a_failure(api: str) -> None:
    async def test(server: FakeServer, client: Client) -> None:
        server.abort = True
        outcome = await client.send(make_dialect(api, "fake"), PROMPT, 4)

        assert outcome.error == "the server ended it: abort"
        assert len(outcome.arrivals) == 1

    with_server(test)


async def closing_early(*replies: bytes, after_s: float = 0.0) -> tuple[asyncio.Server, list[int]]:
    """Return a server that ends its nth connection after the nth reply, and the replies' sizes."""
    sent: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'"stream":true}')
        reply = replies[len(sent)]
        sent.append(len(reply))
        await asyncio.sleep(0.0 if reply else after_s)
        writer.write(reply)
        writer.close()
        await writer.wait_closed()

    return await asyncio.start_server(answer, "127.0.0.1", 0), sent


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"output_ids": [7], "meta_info": {"completion_tokens": 1}}\n\n'
WHOLE = HEAD + b"%x\r\n%s\r\n0\r\n\r\n" % (len(EVENT), EVENT)


async def send_to(server: asyncio.Server) -> Outcome:
    """Return what came of one request."""
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(60), server, Client(f"http://127.0.0.1:{port}") as client:
        return await client.send(make_dialect("generate", "m"), PROMPT, 1)


def test_a_reply_that_breaks_off_before_its_first_token_is_a_failure_and_not_asked_again() -> None:
    async def scenario() -> None:
        server, sent = await closing_early(HEAD, WHOLE)

        outcome = await send_to(server)

        assert (outcome.error or "").startswith("ClientPayloadError")
        assert sent == [len(HEAD)]

    asyncio.run(scenario())


def test_time_lost_to_a_connection_that_was_closed_counts() -> None:
    async def scenario() -> None:
        server, sent = await closing_early(b"", WHOLE, after_s=0.05)

        outcome = await send_to(server)

        assert (outcome.error, sent) == (None, [0, len(WHOLE)])
        assert outcome.ttft_s is not None
        assert outcome.ttft_s > 0.04

    asyncio.run(scenario())


def test_a_server_that_is_not_there_is_an_outcome() -> None:
    async def scenario() -> None:
        async with Client("http://127.0.0.1:9") as client:
            outcome = await client.send(make_dialect("generate", "m"), PROMPT, 1)
            assert outcome.error is not None
            assert outcome.error.startswith("ClientConnectorError")

    asyncio.run(scenario())


def test_facts_are_asked_and_the_cache_is_flushed() -> None:
    async def test(server: FakeServer, client: Client) -> None:
        facts = await ask_facts(client)

        assert (facts.engine, facts.model, facts.vocab_size) == ("nobody", "fake", None)
        assert await client.flush() == "/flush_cache"
        assert server.flushes == 1

    with_server(test)


def test_lines_are_whole_however_the_bytes_are_cut() -> None:
    lines = StreamLines()
    data = b': keep-alive\n\ndata: {"a": 1}\r\n\ndata:[DONE]\n\n'

    found = [line for at in range(len(data)) for line in lines.feed(data[at : at + 1])]

    assert found == [b'{"a": 1}', b"[DONE]"]
