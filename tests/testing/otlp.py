"""A collector of OpenTelemetry traces: OTLP over HTTP, on a free loopback port."""

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

LIMIT_S = 60.0


class Collector:
    """Keeps the spans that it is sent, in the order in which they come."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._spans: list[Span] = []
        self.services: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(LIMIT_S)
        self._server.server_close()

    def take(self, body: bytes) -> None:
        """Take the body of a request."""
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            for resource in request.resource_spans:
                self.services |= {
                    item.value.string_value
                    for item in resource.resource.attributes
                    if item.key == "service.name"
                }
                for scope in resource.scope_spans:
                    self._spans += scope.spans
            self._lock.notify_all()

    def trace(self, trace_id: str, *, roots: int = 1) -> dict[str, Span]:
        """Wait until a trace has so many spans of a server; return its spans by name."""
        ends_s = time.monotonic() + LIMIT_S
        with self._lock:
            while True:
                spans = [span for span in self._spans if span.trace_id.hex() == trace_id]
                if sum(span.kind == Span.SPAN_KIND_SERVER for span in spans) >= roots:
                    return {span.name: span for span in spans}
                assert self._lock.wait(ends_s - time.monotonic()), f"no trace {trace_id}: {spans}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                fine = self.path == "/v1/traces"
                if fine:
                    collector.take(body)
                self.send_response(200 if fine else 404)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def facts_of(span: Span) -> dict[str, Any]:
    """Return the attributes of a span; a list of texts as a list."""
    return {item.key: _value(item.value) for item in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)


def traceparent(trace_id: str, parent: str, *, sampled: bool = True) -> str:
    """Return the header that continues a trace."""
    return f"00-{trace_id}-{parent}-{'01' if sampled else '00'}"
