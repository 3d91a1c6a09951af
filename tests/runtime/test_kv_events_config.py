"""The JSON of --kv-events-config: what vLLM's and SGLang's users type, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.command_line import parse_args
from runtime.errors import ConfigError
from runtime.kv_events_config import (
    HASH_KEY_BYTES,
    KvEventsConfig,
    host_and_port,
    parse_kv_events_config,
    read_hash_key,
)


def parse(**keys: Any) -> KvEventsConfig | None:
    return parse_kv_events_config(json.dumps(keys))


def parsed(**keys: Any) -> KvEventsConfig:
    config = parse(publisher="zmq", **keys)
    assert config is not None
    return config


@pytest.mark.parametrize(
    "keys",
    [
        {"publisher": "null"},
        {"enable_kv_cache_events": False},
        {"enable_kv_cache_events": False, "publisher": "zmq"},
        {"enable_kv_cache_events": True, "publisher": "null"},
    ],
)
def test_events_are_off_when_either_peer_would_read_off(keys: dict[str, Any]) -> None:
    assert parse(**keys) is None


def test_events_are_off_by_default() -> None:
    assert parse_kv_events_config(None) is None
    assert parse_args([]).kv_events_config is None


def test_the_default_endpoint_is_loopback_and_listened_on() -> None:
    config = parsed()

    assert config.endpoint == "tcp://127.0.0.1:5557"
    assert config.listens
    assert not config.leaves_the_machine
    assert config.replay_endpoint is None


def test_what_users_of_vllm_and_sglang_type_is_understood() -> None:
    config = parse(
        enable_kv_cache_events=True,
        publisher="zmq",
        endpoint="tcp://*:5557",
        replay_endpoint="tcp://*:5558",
        topic="kv@pod@model",
        buffer_steps=7,
        hwm=8,
        max_queue_size=9,
    )

    assert config is not None
    assert (config.endpoint, config.replay_endpoint) == ("tcp://*:5557", "tcp://*:5558")
    assert (config.topic, config.buffer_steps) == ("kv@pod@model", 7)
    assert (config.hwm, config.max_queue_size) == (8, 9)
    assert config.leaves_the_machine
    assert parse(enable_kv_cache_events=True) is not None


@pytest.mark.parametrize(
    ("endpoint", "bind", "listens"),
    [
        ("tcp://*:5557", None, True),
        ("tcp://0.0.0.0:5557", None, True),
        ("tcp://[::]:5557", None, True),
        ("tcp://[::1]:5557", None, True),
        ("tcp://localhost:0", None, True),
        ("ipc:///run/kv", None, True),
        ("tcp://router.default.svc:5557", None, False),
        ("tcp://192.0.2.7:5557", None, False),
        ("tcp://192.0.2.7:5557", True, True),
        ("tcp://127.0.0.1:5557", False, False),
    ],
)
def test_only_an_address_elsewhere_is_connected_to(
    endpoint: str, bind: bool | None, listens: bool
) -> None:
    assert parsed(endpoint=endpoint, bind=bind).listens is listens


def test_a_replay_for_others_leaves_the_machine_too() -> None:
    assert parsed(replay_endpoint="tcp://*:5558").leaves_the_machine
    assert not parsed(replay_endpoint="ipc:///run/kv").leaves_the_machine


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "truncated|malformed"),
        ("zmq", "malformed"),
        ("[]", "Expected `object`"),
        ("{}", '"publisher": "zmq"'),
        ('{"endpoint": "tcp://*:5557"}', '"publisher": "zmq"'),
        ('{"publisher": "kafka"}', "kafka"),
        ('{"publisher": "zmq", "topics": ""}', "unknown field `topics` .known: .*topic"),
        ('{"publisher": "zmq", "hwm": 0}', "hwm"),
        ('{"publisher": "zmq", "hwm": "many"}', "hwm"),
        ('{"publisher": "zmq", "hwm": true}', "hwm"),
        ('{"publisher": "zmq", "buffer_steps": -1}', "buffer_steps"),
        ('{"publisher": "zmq", "max_queue_size": 1e9}', "max_queue_size"),
        ('{"publisher": "zmq", "endpoint": "tcp://*:70000"}', "70000"),
        ('{"publisher": "zmq", "endpoint": "tcp://5557"}', "no endpoint"),
        ('{"publisher": "zmq", "endpoint": "inproc://kv"}', "no endpoint"),
        ('{"publisher": "zmq", "endpoint": "ipc://kv"}', "no endpoint"),
        ('{"publisher": "zmq", "endpoint": "tcp://a:0"}', "needs a port"),
        ('{"publisher": "zmq", "replay_endpoint": "nowhere"}', "nowhere"),
        ('{"publisher": "zmq", "replay_endpoint": "tcp://127.0.0.1:5557"}', "both"),
        ('{"publisher": "zmq", "topic": "\\ud800"}', "truncated"),
    ],
)
def test_anything_else_is_refused_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"--kv-events-config: .*({words})"):
        parse_args(["--kv-events-config", text])


def test_events_of_a_cache_that_is_off_are_refused() -> None:
    with pytest.raises(ConfigError, match="--disable-radix-cache"):
        parse_args(["--kv-events-config", '{"publisher": "zmq"}', "--disable-radix-cache"])


def test_an_endpoint_is_host_and_port_or_a_path() -> None:
    assert host_and_port("tcp://[::1]:5557") == ("[::1]", 5557)
    assert host_and_port("ipc:///run/kv") == ("", 0)


def test_a_hash_key_is_read_whole_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    assert read_hash_key(parsed()) is None
    file.write_bytes(bytes(range(HASH_KEY_BYTES)))
    assert read_hash_key(parsed(hash_key_file=str(file))) == bytes(range(HASH_KEY_BYTES))

    for data in (b"", b"x" * (HASH_KEY_BYTES - 1), b"x" * (HASH_KEY_BYTES + 1)):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match="must have 32 bytes"):
            read_hash_key(parsed(hash_key_file=str(file)))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_hash_key(parsed(hash_key_file=str(tmp_path / "none")))
