"""What the command line of replicas says, and what it may not."""

import json

import pytest

from runtime.command_line import parse_args
from runtime.errors import ConfigError
from runtime.kv_events_config import parse_kv_events_config
from runtime.replicas.settings import read_settings


def test_a_server_has_its_own_address_and_events_and_all_other_flags() -> None:
    found = read_settings(
        ["--replicas", "3", "--port", "31000", "--host=0.0.0.0", "--api-key", "k"]
    )

    assert (found.replicas, found.max_replicas) == (3, 3)
    assert (found.config.host, found.config.port) == ("0.0.0.0", 31000)
    flags = found.server_flags(port=4, events_host="10.0.0.1", hash_key_file="F")
    server = parse_args(flags)
    assert (server.host, server.port, server.api_key) == ("127.0.0.1", 4, "k")
    events = parse_kv_events_config(server.kv_events_config)
    assert events is not None
    assert (events.endpoint, events.replay_endpoint) == ("tcp://10.0.0.1:0",) * 2
    assert events.listens
    assert events.hash_key_file == "F"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--replicas", "0"], "--replicas must lie"),
        (["--replicas", "3", "--max-replicas", "2"], "--replicas must lie"),
        (["--target-requests", "nan"], "--target-requests"),
        (["--kv-events-config", json.dumps({"publisher": "zmq"})], "is set for each replica"),
        (["--restart-scheduler", "1"], "Ray starts a replica again"),
        (["--model-path", "/no/such"], "/no/such"),
    ],
)
def test_what_cannot_be_is_refused(flags: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_settings(flags)


def test_unknown_flags_are_those_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--replica", "2"], ["--max-replicas", "x"]):
        with pytest.raises(SystemExit) as ended:
            read_settings(flags)
        assert ended.value.code == 2
    assert "unknown flag --replica" in capsys.readouterr().err
