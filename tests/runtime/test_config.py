"""Flags and the dataclass are one thing; wrong values are refused with a message that helps."""

import ipaddress
import math
import typing
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from runtime.command_line import build_parser, parse_args
from runtime.config import ServerConfig, check
from runtime.errors import ConfigError


def test_no_flags_give_the_defaults() -> None:
    assert parse_args([]) == ServerConfig()


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ServerConfig().port = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_every_field_is_a_flag_and_reaches_its_field() -> None:
    parser = build_parser()
    for action in parser._actions:
        if action.dest == "help":
            continue
        word = next(iter(action.choices)) if action.choices else "7"
        argv = [action.option_strings[-1], *([] if action.nargs == 0 else [str(word)])]

        value = getattr(parser.parse_args(argv), action.dest)

        assert str(value) in (str(word), "7.0", "True", "('7',)", "(7,)"), action.dest
    flags = {action.dest for action in parser._actions} - {"help"}
    assert flags == {item.name for item in fields(ServerConfig)}


def test_every_default_is_of_its_own_type() -> None:
    for name, hint in typing.get_type_hints(ServerConfig).items():
        default = getattr(ServerConfig(), name)
        if typing.get_origin(hint) is typing.Literal:
            assert default in typing.get_args(hint), name
        elif name == "log_level_http" or typing.get_origin(hint) is tuple:
            assert not default, name
        else:
            assert isinstance(default, hint), name


def test_every_field_explains_itself() -> None:
    for item in fields(ServerConfig):
        text = item.metadata["help"]
        assert text

        assert not text.endswith("."), f"{item.name}: one style of help"


def test_the_help_text_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_args(["--help"])

    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--chunked-prefill-size" in shown
    assert "(default: 1024)" in shown


def test_several_numbers_are_words_of_one_flag() -> None:
    assert parse_args(["--cuda-graph-bs", "1", "8", "--port", "9"]).cuda_graph_bs == (1, 8)


def test_minus_one_is_a_value_not_a_flag() -> None:
    assert parse_args(["--chunked-prefill-size", "-1"]).chunked_prefill_size == -1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--modle-path", "x"], "did you mean --model-path?"),
        (["--chunked-prefill", "64"], "did you mean --chunked-prefill-size?"),
        (["--completely-unrelated-words"], "unknown flag --completely-unrelated-words"),
        (["serve"], "unexpected argument serve"),
        (["--port", "many"], "invalid int value"),
        (["--dp", "some"], "'some' is no whole number, nor auto"),
        (["--dtype", "float16"], "invalid choice"),
        (["--port"], "expected one argument"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_misuse_exits_with_2_and_says_why(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_args(argv)

    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--version", "--verbose", "--temperature", "--frequency"])
def test_a_flag_that_is_like_none_is_not_taken_for_one(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_args([flag])

    told = capsys.readouterr().err
    assert f"unknown flag {flag}" in told
    assert "did you mean" not in told


def test_flags_of_other_servers_are_refused_with_what_to_give_instead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_args(["--port", "1", "--swap-space", "4"])

    assert ended.value.code == 2
    assert "--swap-space is not a flag of this server" in capsys.readouterr().err


def test_a_command_line_of_sglangs_is_taken_where_it_asks_for_what_is_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = """--model /m --tp 1 --ep 1 --enable-metrics --reasoning-parser=deepseek-v4
        --page-size 256
        --radix-eviction-policy lru --uvicorn-access-log-exclude-prefixes /health /metrics
        --log-level-http warning --trust-remote-code --port 31000"""

    config = parse_args([*line.split()])

    assert (config.model_path, config.port, config.eviction_policy) == ("/m", 31000, "lru")
    assert config.uvicorn_access_log_exclude_prefixes == ("/health", "/metrics")
    assert (config.log_level_http, config.tp_size) == ("warning", 1)
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 4
    assert "note: --ep 1: GPUs of one host share a network with --tp-size only" in notes


@pytest.mark.parametrize(
    "line",
    [
        "--tp 4 --dp 4 --enable-dp-attention",
        "--tp-size 4 --dp-size 4 --enable-dp-attention",
        "--data-parallel-size 4 --enable-expert-parallel",
    ],
)
def test_data_parallel_attention_is_asked_for_in_sglangs_or_vllms_words(line: str) -> None:
    config = parse_args(line.split())

    assert (config.tp_size, config.dp_size, config.enable_dp_attention) == (4, 4, True)


@pytest.mark.parametrize(
    "line",
    [
        "--tp 4 --dp auto",
        "--tp-size 4 --dp-size=auto",
        "--tp 4 --data-parallel-size auto",
        "--tp 4 --data-parallel-size=auto --enable-expert-parallel",
    ],
)
def test_the_server_is_left_to_choose_in_any_of_these_words(line: str) -> None:
    config = parse_args(line.split())

    assert (config.tp_size, config.dp_size, config.enable_dp_attention) == (4, "auto", False)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--tp 4 --dp auto --enable-dp-attention", "leave that out, or give --dp-size 4"),
        ("--tp 3 --dp auto", "--tp-size must be 1, 2, 4 or 8"),
        ("--dp 4", "run several servers behind a router"),
        ("--tp 4 --dp 4", "or add --enable-dp-attention"),
        ("--tp 4 --dp 2 --enable-dp-attention", "both are the same"),
        ("--tp 2 --dp 4 --enable-dp-attention", "both are the same"),
        ("--tp 2 --dp 0 --enable-dp-attention", "both are the same"),
        ("--tp 4 --enable-dp-attention", "needs --dp-size 4"),
        ("--data-parallel-size 3 --enable-expert-parallel", "--tp-size must be 1, 2, 4 or 8"),
    ],
)
def test_other_numbers_of_replicas_are_refused_in_one_line(line: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        parse_args(line.split())

    assert "\n" not in str(refused.value)


def test_a_flag_is_never_guessed_from_its_beginning() -> None:
    with pytest.raises(SystemExit):
        parse_args(["--full", "3"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_running_requests": 0},
        {"max_queued_requests": 0},
        {"max_queued_tokens": 0},
        {"queue_timeout": 0},
        {"request_timeout": math.inf},
        {"priority_aging": -1},
        {"priority_aging": math.nan},
        {"api_key": "k", "api_key_file": "f"},
        {"api_key_file": ""},
        {"decode_log_interval": -1},
        {"chunked_prefill_size": 0},
        {"restart_scheduler": -1},
        {"chunked_prefill_size": -2},
        {"mem_fraction_static": 0.0},
        {"mem_fraction_static": 1.1},
        {"cuda_graph_bs": (1, 0)},
        {"cuda_graph_bs": (1,), "disable_cuda_graph": True},
        {"full_pages": 4, "max_total_tokens": 1024},
        {"max_grammars": 0},
        {"grammar_timeout": 0},
        {"grammar_timeout": math.inf},
        {"grammar_timeout": math.nan},
        {"grammar_timeout": 86_401.0},
        {"watchdog_timeout": 0},
        {"watchdog_timeout": math.nan},
        {"drain_timeout": -1},
        {"drain_timeout": math.inf},
        {"api_key": ""},
        {"api_key": "k "},
        {"api_key": "a\nb"},
        {"api_key": "\udcff"},
        {"model_path": "\udcff"},
        {"model_path": ""},
        {"host": ""},
        {"served_model_name": ""},
        {"uvicorn_access_log_exclude_prefixes": ("/health", "")},
        {"max_running_requests": (1 << 16) + 1},
        {"grammar_memory": 1 << 20},
        {"grammar_memory": (1 << 48) + 1},
        {"grammar_memory": 1 << 70},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    config = replace(ServerConfig(), **wrong)

    with pytest.raises(ConfigError, match="--"):
        check(config)


def test_no_number_is_wider_than_64_bits() -> None:
    names = [
        name for name, hint in typing.get_type_hints(ServerConfig).items() if "int" in str(hint)
    ]
    assert {"full_pages", "port", "random_seed", "cuda_graph_bs"} <= set(names)

    for name in names:
        for value in (1 << 63, -(1 << 63) - 1):
            given = (1, value) if name == "cuda_graph_bs" else value
            with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} does not fit"):
                check(replace(ServerConfig(), **{name: given}))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_a_public_address_wants_a_key_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match="--api-key or --insecure"):
        parse_args(["--host", host])

    assert parse_args(["--host", host, "--api-key", "k"]).host == host
    assert parse_args(["--host", host, "--insecure"]).insecure


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "::1"])
def test_loopback_needs_neither(host: str) -> None:
    assert host == "localhost" or ipaddress.ip_address(host).is_loopback
    assert parse_args(["--host", host]).host == host
