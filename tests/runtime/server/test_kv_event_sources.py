"""What routers are told of the publisher, in SGLang's words and in vLLM's."""

import json
from typing import Any

import pytest

from runtime.config import ServerConfig
from runtime.server.kv_event_sources import describe, sources
from tests.runtime.server.engine import FACTS, Server, served

ENDPOINT, REPLAY = "tcp://127.0.0.1:40001", "tcp://127.0.0.1:40002"
TEXT = json.dumps(
    {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0", "topic": "t", "buffer_steps": 5}
)
ON = ServerConfig(model_path="/models/tiny", served_model_name="tiny", kv_events_config=TEXT)


def facts(**more: str) -> dict[str, str | int | float | bool]:
    return {"page_size": 256, "kv_events_endpoint": ENDPOINT, **more}


def config(**keys: Any) -> ServerConfig:
    return ServerConfig(kv_events_config=json.dumps({"publisher": "zmq", **keys}))


def test_nothing_is_told_while_events_are_off() -> None:
    assert describe(ServerConfig(), {"page_size": 256}) is None
    assert sources(ServerConfig(), {"page_size": 256}) == {}


def test_a_router_of_sglang_reads_host_port_topic_and_block_size() -> None:
    assert describe(ON, facts()) == {
        "publisher": "zmq",
        "endpoint_host": "127.0.0.1",
        "endpoint_port_base": 40001,
        "topic": "t",
        "block_size": 256,
        "dp_size": 1,
    }
    described = describe(ON, facts(kv_events_replay_endpoint=REPLAY))
    assert described is not None
    assert described["replay_endpoint_port_base"] == 40002


def test_what_cannot_be_dialled_by_tcp_is_not_described() -> None:
    elsewhere = config(endpoint="tcp://router:5557")
    assert describe(elsewhere, facts(kv_events_endpoint="tcp://router:5557")) is None
    local = config(endpoint="ipc:///run/kv")
    assert describe(local, facts(kv_events_endpoint="ipc:///run/kv")) is None


def test_a_router_of_vllm_reads_the_settings_of_the_one_rank() -> None:
    told = sources(ON, facts(kv_events_replay_endpoint=REPLAY))

    assert told == {
        "0": {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": ENDPOINT,
            "bind": True,
            "replay_endpoint": REPLAY,
            "topic": "t",
            "buffer_steps": 5,
            "hwm": 10_000,
            "max_queue_size": 10_000,
        }
    }


@served(ON)
async def test_both_are_served(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in facts().items():
        monkeypatch.setitem(FACTS, name, value)

    told = (await server.client.get("/kv_event_sources")).json()
    info = (await server.client.get("/server_info")).json()

    assert told["0"]["endpoint"] == ENDPOINT
    assert info["kv_events"]["endpoint_port_base"] == 40001


@served()
async def test_both_say_off_by_default(server: Server) -> None:
    assert (await server.client.get("/kv_event_sources")).json() == {}
    assert (await server.client.get("/server_info")).json()["kv_events"] is None
