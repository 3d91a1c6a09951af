"""Tests of runtime.server.health."""

import asyncio
import itertools

import pytest

from runtime.messages import State
from runtime.server.health import HEARTBEAT_LIMIT_S
from tests.runtime.server.engine import Server, served


async def statuses(server: Server) -> list[int]:
    return [(await server.client.get(path)).status_code for path in ("/health", "/ready")]


@served()
async def test_a_live_server_is_healthy_and_ready(server: Server) -> None:
    assert await statuses(server) == [200, 200]
    assert (await server.client.get("/health")).content == b""
    assert (await server.client.get("/ping")).status_code == 200


@served()
async def test_a_draining_server_is_healthy_but_not_ready(server: Server) -> None:
    server.manager.draining = True

    assert await statuses(server) == [200, 503]


@served()
async def test_a_dead_engine_is_neither(server: Server) -> None:
    server.manager.engine_died("killed")

    assert await statuses(server) == [503, 503]
    assert (await server.client.get("/health_generate")).status_code == 503


@served()
async def test_an_engine_not_heard_of_is_neither(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = server.manager.last_heartbeat + HEARTBEAT_LIMIT_S + 1
    monkeypatch.setattr(server.manager, "clock", lambda: late)

    assert await statuses(server) == [503, 503]


@served()
async def test_health_asks_nobody(server: Server) -> None:
    for _ in range(5):
        await statuses(server)

    assert not server.engine.requests


@served()
async def test_the_deep_probe_samples_one_token_in_a_namespace_of_its_own(server: Server) -> None:
    reply = await server.client.get("/health_generate")

    assert (reply.status_code, reply.content) == (200, b"")
    [request] = server.engine.requests
    assert request.sampling.max_new_tokens == 1
    assert request.namespace not in ("", None)
    assert request.background


@served()
async def test_a_full_queue_is_no_illness(server: Server) -> None:
    server.engine.refuse = "queue_full"

    assert (await server.client.get("/health_generate")).status_code == 200


@pytest.mark.parametrize("counter", ["generation_tokens", "computed_prompt_tokens"])
@served()
async def test_a_probe_that_waits_for_a_row_is_answered_by_what_others_get(
    server: Server, monkeypatch: pytest.MonkeyPatch, counter: str
) -> None:
    monkeypatch.setattr("runtime.server.health._LOOK_EVERY_S", 0.01)
    server.engine.hold.clear()
    server.manager.last_state = State(0, {counter: 5.0}, {})
    probe = asyncio.ensure_future(server.client.get("/health_generate"))
    await asyncio.sleep(0.1)
    assert not probe.done()

    # It compares two looks, and may not have had the first yet.
    for count in itertools.count(6):
        server.manager.last_state = State(0, {counter: float(count)}, {})
        await asyncio.sleep(0.01)
        if probe.done():
            break

    assert (await probe).status_code == 200
    assert server.manager.in_flight == 0


@pytest.mark.parametrize("sent", [False, True])
@served()
async def test_a_client_that_aborts_everything_makes_no_server_ill(
    server: Server, sent: bool
) -> None:
    server.engine.hold.clear()
    probe = asyncio.ensure_future(server.client.get("/health_generate"))
    while not (server.engine.requests if sent else server.manager.in_flight):
        await asyncio.sleep(0)

    assert await server.manager.abort(all=True) == 1

    assert (await probe).status_code == 200
    assert server.manager.in_flight == 0


@served()
async def test_an_engine_that_does_not_answer_the_probe_is_ill(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.server.health._PROBE_LIMIT_S", 0.02)
    server.engine.hold.clear()

    assert (await server.client.get("/health_generate")).status_code == 503
    await asyncio.sleep(0)
    assert server.manager.in_flight == 0
