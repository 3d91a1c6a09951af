"""What people of SGLang and vLLM type for a collector of traces, and what is refused."""

import importlib.util

import pytest

from runtime.command_line import parse_args
from runtime.errors import ConfigError
from runtime.traces_endpoint import (
    PROTOCOL_VARIABLE,
    TracesEndpoint,
    check_extra,
    parse_traces_endpoint,
)

HTTP = TracesEndpoint("http", "http://h:4318/v1/traces")


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.delenv(PROTOCOL_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (None, None),
        ("http://h:4318", HTTP),
        ("http://h:4318/", HTTP),
        ("http://h:4318/v1/traces", HTTP),
        ("https://h/otlp?key=1", TracesEndpoint("http", "https://h/otlp?key=1")),
        ("0.0.0.0:4317", TracesEndpoint("grpc", "0.0.0.0:4317")),
        ("[::1]:4317", TracesEndpoint("grpc", "[::1]:4317")),
        ("grpc://h:9", TracesEndpoint("grpc", "h:9")),
        ("http://h:4317", TracesEndpoint("grpc", "h:4317")),
        ("https://h:4317", TracesEndpoint("grpc", "h:4317", secure=True)),
    ],
)
def test_a_collector_is_meant_by_its_form(text: str | None, meant: TracesEndpoint | None) -> None:
    assert parse_traces_endpoint(text) == meant


def test_the_environment_overrides_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROTOCOL_VARIABLE, "grpc")
    assert parse_traces_endpoint("http://h:4318") == TracesEndpoint("grpc", "h:4318")

    monkeypatch.setenv(PROTOCOL_VARIABLE, "http/protobuf")
    assert parse_traces_endpoint("http://h:4317") == TracesEndpoint(
        "http", "http://h:4317/v1/traces"
    )
    with pytest.raises(ConfigError):
        parse_traces_endpoint("h:4317")


@pytest.mark.parametrize("text", ["", "h", "http://", "h:x", "h:99999", "ftp://h:1", "http:/h"])
def test_what_is_no_collector_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint"):
        parse_args(["--otlp-traces-endpoint", text])


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    check_extra(HTTP)
    monkeypatch.setattr(importlib.util, "find_spec", missing)
    check_extra(None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[otlp\]'$"):
        check_extra(HTTP)
