"""Traces of requests: continued from the client, a span for each stage, in nobody's way."""

import asyncio
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from runtime.config import ServerConfig
from runtime.messages import Output
from runtime.server.request_record import CallRecord, RequestRecord
from runtime.server.traces import Traces, exporter_to
from runtime.tokenizer.observer import ChoiceEnd, Observer
from runtime.traces_endpoint import parse_traces_endpoint
from tests.runtime.server.engine import Server, serving
from tests.testing.otlp import Collector, facts_of, traceparent

ROOT = Path(__file__).resolve().parents[3]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OTHER = "1bf7651916cd43dd8448eb211c80319c"
HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def tracing(url: str) -> ServerConfig:
    return ServerConfig(model_path="m", served_model_name="tiny", otlp_traces_endpoint=url)


async def close(server: Server) -> None:
    await server.app.state.traces.close(1.0)


def test_one_trace_spans_client_server_and_the_stages_of_its_call(collector: Collector) -> None:
    async def scenario() -> None:
        async with serving(tracing(collector.url)) as server:
            headers = {"traceparent": traceparent(TRACE, PARENT), "tracestate": "a=1,b=2"}
            reply = await server.client.post(
                "/v1/chat/completions", json=HI, headers=headers | {"X-Request-Id": "mine"}
            )
            assert reply.status_code == 200
            assert server.engine.requests[0].traced
            await close(server)

    asyncio.run(scenario())

    spans = collector.trace(TRACE)
    root = spans.pop("POST /v1/chat/completions")
    assert (root.parent_span_id.hex(), root.trace_state) == (PARENT, "a=1,b=2")
    assert set(spans) == {"tokenize", "queue", "prefill", "decode"}
    assert all(span.parent_span_id == root.span_id for span in spans.values())
    assert all(span.trace_state == "a=1,b=2" for span in spans.values())
    took = {name: s.end_time_unix_nano - s.start_time_unix_nano for name, s in spans.items()}
    assert (took["queue"], took["prefill"]) == pytest.approx((0.25e9, 0.5e9), abs=2000)
    assert spans["queue"].start_time_unix_nano == spans["tokenize"].end_time_unix_nano
    assert spans["prefill"].start_time_unix_nano == spans["queue"].end_time_unix_nano
    facts = facts_of(root)
    assert facts["umbra.request.id"] == "mine"
    assert facts["gen_ai.request.model"] == "tiny"
    assert facts["gen_ai.operation.name"] == "chat"
    assert facts["gen_ai.response.finish_reasons"] == ["stop"]
    assert facts["gen_ai.usage.cache_read.input_tokens"] == 3
    assert facts["gen_ai.usage.output_tokens"] == len("hello") + 1
    assert facts["http.response.status_code"] == 200
    assert collector.services == {"umbra"}


def test_the_client_says_what_is_sampled_and_what_is_read_has_no_trace(
    collector: Collector,
) -> None:
    async def scenario() -> None:
        async with serving(tracing(collector.url)) as server:
            for sampled, trace in ((False, TRACE), (True, OTHER)):
                headers = {"traceparent": traceparent(trace, PARENT, sampled=sampled)}
                await server.client.get("/health", headers=headers)
                await server.client.post("/generate", json={"text": "hi"}, headers=headers)
            assert [request.traced for request in server.engine.requests] == [False, True]
            await close(server)

    asyncio.run(scenario())

    assert collector.trace(OTHER)["POST /generate"].parent_span_id.hex() == PARENT
    assert collector.trace(TRACE, roots=0) == {}


def test_a_collector_that_is_away_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"  # nobody listens there any more

    async def scenario() -> None:
        async with serving(tracing(url)) as server:
            for _ in range(3):
                reply = await server.post("/generate", {"text": "hi"})
                assert reply.status_code == 200
                await asyncio.sleep(0.05)
            async with asyncio.timeout(30):
                while not caplog.records:
                    await asyncio.sleep(0.01)
            logging.getLogger("opentelemetry.sdk").warning("and more")
            began_s = time.monotonic()
            await server.app.state.traces.close(0.05)
            assert time.monotonic() - began_s < 5

    with caplog.at_level(logging.WARNING, logger="umbra.traces"):
        asyncio.run(scenario())

    (told,) = caplog.records
    assert told.name == "umbra.traces"


class Kept(SpanExporter):
    """Keeps spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


def spans_of(
    record: RequestRecord, call: CallRecord | None, *, ended_s: float
) -> tuple[list[tuple[str, float, float]], list[Any]]:
    """Return what is made of a request that began at the clock's 0: names and seconds; spans."""
    kept = Kept()
    traces = Traces("m", kept)
    end = traces.watch(record)
    assert end is not None
    record.calls += [call] if call is not None else []
    record.ended_s = ended_s
    end()
    asyncio.run(traces.close(5.0))
    spans: list[Any] = kept.spans
    return [(span.name, span.start_time / 1e9, span.end_time / 1e9) for span in spans], spans


def request(status: int | None = 200) -> RequestRecord:
    scope = {"type": "http", "method": "POST", "path": "/generate", "headers": []}
    return RequestRecord(scope, 0.0, 0, status=status)


def call_of() -> CallRecord:
    call = CallRecord(Observer(), None, started_s=1.0, traced=True)
    call.stage("tokenize", 1.0)
    return call


def test_a_grammar_and_chunks_have_their_times() -> None:
    call = call_of()
    news = Output(1, [7], queue_s=3.0, prefill_s=2.0, grammar_s=2.5, chunks=[(64, 4.0), (90, 5.0)])
    call.begun(0, news)
    call.finished(
        ChoiceEnd(
            "length",
            index=0,
            seconds=10.0,
            decode_s=1.5,
            prompt_tokens=90,
            cached_tokens=0,
            completion_tokens=4,
        )
    )

    times, spans = spans_of(request(), call, ended_s=12.0)

    assert times == [
        ("tokenize", 1.0, 2.0),
        ("grammar", 2.0, 4.5),
        ("queue", 2.0, 5.0),
        ("prefill", 5.0, 7.0),
        ("decode", 7.0, 8.5),
        ("POST", 0.0, 12.0),
    ]
    told = [(e.attributes["umbra.prefill.end"], e.timestamp / 1e9) for e in spans[3].events]
    assert told == [(64, 6.0), (90, 7.0)]


def test_what_is_given_up_in_the_queue_was_only_there() -> None:
    call = call_of()
    call.finished(
        ChoiceEnd(
            "abort",
            index=0,
            seconds=4.0,
            decode_s=None,
            prompt_tokens=9,
            cached_tokens=0,
            completion_tokens=0,
        )
    )

    times, _ = spans_of(request(None), call, ended_s=6.0)

    assert times == [("tokenize", 1.0, 2.0), ("queue", 2.0, 5.0), ("POST", 0.0, 6.0)]


def test_a_refusal_is_named() -> None:
    call = call_of()
    call.refused("QueueFull")

    times, spans = spans_of(request(429), call, ended_s=6.0)

    assert times[1] == ("queue", 2.0, 6.0)
    assert spans[-1].attributes["error.type"] == "QueueFull"
    assert spans[-1].status.is_unset


def test_a_fault_of_the_server_is_an_error() -> None:
    _, spans = spans_of(request(500), None, ended_s=1.0)

    assert not spans[-1].status.is_ok
    assert not spans[-1].status.is_unset


@pytest.mark.parametrize(
    ("text", "module"), [("h:4317", "grpc"), ("http://h:4318", "http")], ids=["grpc", "http"]
)
def test_the_exporter_is_that_of_the_protocol(text: str, module: str) -> None:
    endpoint = parse_traces_endpoint(text)
    assert endpoint is not None

    exporter = exporter_to(endpoint)

    assert type(exporter).__module__.split(".")[4] == module
    exporter.shutdown()


def test_switched_off_nothing_is_imported() -> None:
    """The API alone is: FastAPI imports it."""
    names = ("opentelemetry.sdk", "opentelemetry.exporter", "grpc", "runtime.server.traces")
    code = (
        "import asyncio, sys, runtime.launch; from tests.runtime.server.engine import serving\n"
        "async def main():\n"
        "    async with serving() as server:\n"
        "        assert (await server.post('/generate', {'text': 'hi'})).status_code == 200\n"
        "asyncio.run(main())\n"
        f"print([m for m in {names} if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert ended.stdout == "[]\n"
