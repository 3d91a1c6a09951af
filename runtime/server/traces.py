"""OpenTelemetry traces of requests, from their records to a collector.

    POST /v1/chat/completions      from the request's head to the end of its reply
      tokenize                     until a call went to the scheduler
      grammar                      until its grammar was compiled
      queue                        without a row
      prefill                      until its prompt was computed; an event for each chunk
      decode                       until its last token

Spans are made when a reply has ended, from times in the scheduler's ordinary messages. This module
needs the extra `otlp`, and is imported only with --otlp-traces-endpoint.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from runtime.server.request_record import CallRecord, ChoiceRecord, RequestRecord
from runtime.traces_endpoint import TracesEndpoint
from runtime.version import VERSION

__all__ = ["Traces", "exporter_to"]

logger = logging.getLogger("umbra.traces")

# GET is for health checks, scrapes and pages, whose traces would be many and of no use.
_TRACED_METHODS = ("POST", "PUT", "DELETE")
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
}
WARNING_INTERVAL_S = 60.0
_LOOK_S = 0.02


def exporter_to(endpoint: TracesEndpoint) -> SpanExporter:
    """Return an exporter to a collector; OTEL_EXPORTER_OTLP_* give it headers and the rest."""
    if endpoint.protocol == "http":
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

        return over_http.OTLPSpanExporter(endpoint=endpoint.target)
    from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

    return over_grpc.OTLPSpanExporter(endpoint=endpoint.target, insecure=not endpoint.secure)


class Traces:
    """Makes spans of requests, and sends them in batches from a thread of its own.

    While the collector is unavailable they wait in a bounded queue; when it is full, spans are
    dropped. The log has one warning a minute. Sampling follows the client's trace context; without
    one, OTEL_TRACES_SAMPLER decides, which samples all by default.
    """

    def __init__(self, model_name: str, exporter: SpanExporter) -> None:
        self._model_name = model_name
        self._exporter = exporter
        _log_seldom()
        named = {"service.name": "umbra", "service.version": VERSION}
        by_environment = OTELResourceDetector().detect().attributes
        resource = Resource.create({**named, **by_environment})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("umbra", VERSION)
        self._context = TraceContextTextMapPropagator()

    def watch(self, record: RequestRecord) -> Callable[[], None] | None:
        """Begin the span of a request; return what ends it, None for one that is not traced."""
        method, path = record.scope["method"], record.scope["path"]
        if method not in _TRACED_METHODS:
            return None
        names = ("traceparent", "tracestate")
        carried = {name: value for name in names if (value := record.header(name.encode()))}
        root = self._tracer.start_span(
            method,
            self._context.extract(carried),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": path},
            start_time=record.started_ns,
        )
        if not root.is_recording():
            return None
        record.traced = True
        return lambda: self._end(root, record)

    async def close(self, limit_s: float) -> None:
        """Send the spans that are left, for at most so many seconds; then drop them."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True, name="traces")
        closing.start()
        until_s = time.monotonic() + limit_s
        while closing.is_alive() and time.monotonic() < until_s:
            await asyncio.sleep(_LOOK_S)
        if closing.is_alive():
            self._exporter.shutdown()  # ends a wait for the next try

    def _end(self, root: Span, record: RequestRecord) -> None:
        route = getattr(record.scope.get("route"), "path", None)
        if route is not None:
            root.update_name(f"{record.scope['method']} {route}")
            root.set_attribute("http.route", route)
        for name, value in _facts(record, self._model_name).items():
            if value is not None:
                root.set_attribute(name, value)
        if record.status is None or record.status >= 500:
            root.set_status(Status(StatusCode.ERROR))
        stages = _Stages(self._tracer, set_span_in_context(root), record)
        for call in record.calls:
            stages.of_call(call)
        root.end(_at(record, record.ended_s))


class _Stages:
    """Makes the spans of the stages of a request's calls, below the request's own."""

    def __init__(self, tracer: Tracer, parent: Context, record: RequestRecord) -> None:
        self._tracer = tracer
        self._parent = parent
        self._record = record

    def of_call(self, call: CallRecord) -> None:
        """Make the spans of one call; one that was never sent has none."""
        if call.sent_s is None:
            return
        self._make("tokenize", call.started_s, call.sent_s)
        if not call.choices:  # refused, or not answered yet
            self._make("queue", call.sent_s, self._record.ended_s)
        for choice in call.choices.values():
            self._of_choice(choice, call.sent_s, call.started_s + choice.seconds)

    def _of_choice(self, choice: ChoiceRecord, sent_s: float, ended_s: float) -> None:
        facts = {"umbra.choice.index": choice.index}
        if choice.reason is None:
            ended_s = self._record.ended_s
        if not choice.begun:
            self._make("queue", sent_s, ended_s, facts)
            return
        admitted_s = sent_s + choice.queue_s
        computed_s = admitted_s + choice.prefill_s
        if choice.grammar_s:
            self._make("grammar", sent_s, sent_s + choice.grammar_s, facts)
        self._make("queue", sent_s, admitted_s, facts)
        tokens = {
            "gen_ai.usage.input_tokens": choice.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": choice.cached_tokens,
        }
        chunks = [(end, sent_s + seconds) for end, seconds in choice.chunks]
        self._make("prefill", admitted_s, computed_s, facts | tokens, chunks)
        if choice.decode_s is not None:
            ended_s = computed_s + choice.decode_s
        tokens = {"gen_ai.usage.output_tokens": choice.completion_tokens}
        self._make("decode", computed_s, max(computed_s, ended_s), facts | tokens)

    def _make(
        self,
        name: str,
        start_s: float,
        end_s: float,
        facts: Mapping[str, int] | None = None,
        chunks: Sequence[tuple[int, float]] = (),
    ) -> None:
        span = self._tracer.start_span(
            name, self._parent, attributes=facts, start_time=_at(self._record, start_s)
        )
        for tokens, at_s in chunks:
            span.add_event("chunk", {"umbra.prefill.end": tokens}, _at(self._record, at_s))
        span.end(_at(self._record, end_s))


def _at(record: RequestRecord, clock_s: float) -> int:
    """Return the Unix time in ns of a clock reading."""
    return record.started_ns + round((clock_s - record.started_s) * 1e9)


def _facts(record: RequestRecord, model_name: str) -> dict[str, AttributeValue | None]:
    """Return attributes of a request, named by OpenTelemetry's conventions."""
    refusals = [call.refusal for call in record.calls if call.refusal is not None]
    failed = record.status is None or record.status >= 400
    facts: dict[str, AttributeValue | None] = {
        "http.response.status_code": record.status,
        "error.type": (refusals or [str(record.status or "no_reply")])[0] if failed else None,
        "umbra.request.id": record.rid,
    }
    if not record.calls:
        return facts
    streamed = any(call.first_token_s is not None for call in record.calls)
    return facts | {
        "gen_ai.provider.name": "umbra",
        "gen_ai.operation.name": _OPERATIONS.get(record.scope["path"]),
        "gen_ai.request.model": model_name,
        "gen_ai.response.model": model_name,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.response.finish_reasons": [c.reason for c in record.choices if c.reason],
        "gen_ai.response.time_to_first_chunk": record.ttft_s if streamed else None,
    }


class _Seldom(logging.Handler):
    """Logs OpenTelemetry's warnings as the server's own, one a minute at most."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Log the warning, or drop it."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + WARNING_INTERVAL_S
        fault = record.exc_info[1] if record.exc_info else None
        more = "" if fault is None else f" {type(fault).__name__}: {fault}"
        logger.warning("traces may be lost: %s%s", record.getMessage(), more)


def _log_seldom() -> None:
    """Route OpenTelemetry's log through `_Seldom` alone."""
    theirs = logging.getLogger("opentelemetry")
    theirs.propagate = False
    theirs.handlers = [_Seldom()]
