"""Parses `--otlp-traces-endpoint`."""

import importlib.util
import os
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from runtime.errors import ConfigError

__all__ = ["TracesEndpoint", "check_extra", "parse_traces_endpoint"]

# OpenTelemetry's standard variable, which SGLang and vLLM read, too.
PROTOCOL_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
# By convention collectors take gRPC at this port, and HTTP at 4318.
_GRPC_PORT = 4317
_HTTP_PATH = "/v1/traces"


@dataclass(frozen=True, slots=True)
class TracesEndpoint:
    """A collector of traces.

    protocol  over which OTLP is spoken
    target    a URL for HTTP, "host:port" for gRPC
    secure    whether gRPC is encrypted; a URL says it by its scheme
    """

    protocol: Literal["grpc", "http"]
    target: str
    secure: bool = False


def parse_traces_endpoint(text: str | None) -> TracesEndpoint | None:
    """Return the collector that the flag names; None without one.

    OTLP is spoken over gRPC with `HOST:PORT`, `grpc://HOST:PORT` and any URL of port 4317, and over
    HTTP with any other URL, whose path is /v1/traces if it has none. `grpc` or `http/protobuf` in
    the environment's OTEL_EXPORTER_OTLP_TRACES_PROTOCOL overrides this. Raises ConfigError.
    """
    if text is None:
        return None
    fault = f"--otlp-traces-endpoint {text}: give http://HOST:4318, or HOST:4317 for gRPC"
    url = urlsplit(text if "://" in text else f"grpc://{text}")
    try:
        port = url.port
    except ValueError as bad:
        raise ConfigError(fault) from bad
    if url.scheme not in ("grpc", "http", "https") or not url.hostname:
        raise ConfigError(fault)
    by_form = "grpc" if url.scheme == "grpc" or port == _GRPC_PORT else "http/protobuf"
    match os.environ.get(PROTOCOL_VARIABLE) or by_form:
        case "grpc" if port is not None:
            return TracesEndpoint("grpc", url.netloc, secure=url.scheme == "https")
        case "http/protobuf" if url.scheme != "grpc":
            path = url.path if url.path.strip("/") else _HTTP_PATH
            return TracesEndpoint("http", url._replace(path=path).geturl())
        case _:
            raise ConfigError(fault)


def check_extra(endpoint: TracesEndpoint | None) -> None:
    """Raise ConfigError where the packages that make and send traces are not installed."""
    if endpoint is None:
        return
    for name in ("sdk", f"exporter.otlp.proto.{endpoint.protocol}"):
        try:
            found = importlib.util.find_spec(f"opentelemetry.{name}")
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ConfigError(
                "--otlp-traces-endpoint needs OpenTelemetry: pip install -e '.[otlp]'"
            )
