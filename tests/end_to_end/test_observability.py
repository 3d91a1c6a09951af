"""Two real servers seen from outside: by a dashboard, by a collector of traces, by their log."""

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.server.dashboard_panels import NOT_SHOWN, ROWS
from tests.testing.browser import wait_for
from tests.testing.otlp import Collector, facts_of, traceparent
from tests.testing.server_process import ServerProcess, reserved_port

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SELECTOR = re.compile(r"((?:sglang|umbra):\w+)\{([^}]*)\}")
# More than one prefill step takes.
CHUNK_TOKENS, PROMPT = 2048, "Once there was a fox who knew a spoon. " * 200

Sample = tuple[str, dict[str, str]]


def scraped(server: ServerProcess, number: int) -> list[Sample]:
    """Return the series of one of two replicas, with the labels that Prometheus adds."""
    added = {"instance": f"127.0.0.1:{server.port}", "replica": str(number)}
    return [
        (sample.name, sample.labels | added)
        for family in text_string_to_metric_families(server.client.get("/metrics").text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]


def asked_for(expression: str) -> tuple[list[str], set[str]]:
    """Return the metrics that an expression asks for, and the labels that it tells apart."""
    found = SELECTOR.findall(expression)
    for _, matchers in found:
        assert matchers == 'instance=~"$instance",replica=~"$replica"'
    rest = SELECTOR.sub("", expression)
    assert not re.search(r"sglang:|umbra:", rest), expression
    labels = {label for group in re.findall(r"by \(([^)]*)\)", rest) for label in group.split(", ")}
    return [name for name, _ in found], labels


def test_every_panel_has_data_of_two_replicas_and_no_metric_is_forgotten(
    stand_in_server: ServerProcess, keyed_server: ServerProcess
) -> None:
    replicas = (stand_in_server, keyed_server)
    for server in replicas:
        server.generate("Once", {"cache_salt": "salt"}, max_new_tokens=2)
    series = [sample for k, server in enumerate(replicas) for sample in scraped(server, k)]
    by_name: dict[str, list[dict[str, str]]] = {}
    for name, labels in series:
        by_name.setdefault(name, []).append(labels)

    shown: set[str] = set()
    for row, panels in ROWS.items():
        for panel in panels:
            for legend, expression in panel.queries.items():
                names, labels = asked_for(expression)
                told = set(re.findall(r"\{\{(\w+)\}\}", legend))
                assert told <= labels, (row, panel.title)
                # Ranks of one server, and namespaces, are told apart only where there are several.
                labels -= {"dp_rank"}
                for name in names:
                    shown.add(name)
                    found = by_name.get(name, [])
                    of = {one["replica"] for one in found if labels <= one.keys()}
                    assert of == {"0", "1"} or name == "umbra:namespace_tokens", (row, name)

    whole = {re.sub(r"_(bucket|sum|count)$", "", name) for name in by_name}
    drawn = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert whole - drawn == NOT_SHOWN.keys()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus in the PATH")
def test_prometheus_answers_every_query_of_two_replicas(
    stand_in_server: ServerProcess, keyed_server: ServerProcess, tmp_path: Path
) -> None:
    replicas = (stand_in_server, keyed_server)
    with running_prometheus([server.port for server in replicas], tmp_path) as prometheus:
        wait_for(lambda: len(answered(prometheus, "up == 1")) == 2, "both are scraped")
        for server in replicas:
            server.generate("Once", max_new_tokens=2)
            list(server.stream("Once", max_new_tokens=2))
        again = "count_over_time(sglang:num_requests_total[1m]) > 4"
        wait_for(lambda: len(answered(prometheus, again)) == 2, "both are scraped again")

        for row, panels in ROWS.items():
            for panel in panels:
                answers = [answered(prometheus, query) for query in panel.queries.values()]
                assert any(answers), f"{row}, {panel.title}: no data"


@contextlib.contextmanager
def running_prometheus(ports: list[int], folder: Path) -> Iterator[httpx.Client]:
    """Scrape servers as replicas; yield a client."""
    found = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"replica": str(k)}}
        for k, port in enumerate(ports)
    ]
    scrape = {"job_name": "umbra", "scrape_interval": "1s", "static_configs": found}
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
    with reserved_port() as port:
        flags = (f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'data'}")
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", *flags]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                with httpx.Client(base_url=url, trust_env=False) as client:
                    wait_for(lambda: is_ready(client), "prometheus is ready")
                    yield client
            finally:
                process.terminate()


def is_ready(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/-/ready").status_code == 200
    return False


def answered(prometheus: httpx.Client, query: str) -> list[Any]:
    """Return the series that answer a query of all servers; fail where it is not valid."""
    values = {"__rate_interval": "1m", "instance": ".*", "replica": ".*"}
    for name, value in values.items():
        query = query.replace(f"${name}", value)
    reply = prometheus.get("/api/v1/query", params={"query": query}).json()
    assert reply["status"] == "success", (query, reply)
    return reply["data"]["result"]


def test_one_trace_spans_client_to_decode_in_a_real_server(
    keyed_server: ServerProcess, collector: Collector
) -> None:
    headers = {"traceparent": traceparent(TRACE, PARENT), "X-Request-Id": "mine"}
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    assert keyed_server.post("/generate", body, headers=headers).status_code == 200

    spans = collector.trace(TRACE)
    root = spans.pop("POST /generate")
    assert root.parent_span_id.hex() == PARENT
    assert set(spans) == {"tokenize", "queue", "prefill", "decode"}
    for span in spans.values():
        assert span.parent_span_id == root.span_id
        assert span.start_time_unix_nano >= root.start_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
    facts = facts_of(root)
    prompt_tokens, cached_tokens = (
        facts[f"gen_ai.usage.{name}"] for name in ("input_tokens", "cache_read.input_tokens")
    )
    ends = [event.attributes[0].value.int_value for event in spans["prefill"].events]
    whole = range(cached_tokens + CHUNK_TOKENS, prompt_tokens, CHUNK_TOKENS)
    assert ends == [*whole, prompt_tokens]
    assert len(ends) > 1
    times = [event.time_unix_nano for event in spans["prefill"].events]
    assert times == sorted(times)
    assert times[-1] <= spans["prefill"].end_time_unix_nano + 1000


def test_all_processes_write_one_object_a_line(keyed_server: ServerProcess) -> None:
    keyed_server.generate("Once", {"rid": "named"}, max_new_tokens=2)
    keyed_server.client.get("/health")
    # A line is written after its reply.
    wait_for(lambda: '"path": "/health"' in keyed_server.log(), "the line of /health")

    whole = keyed_server.log().split("\n")[1:-1]  # the first may be cut off
    lines: list[dict[str, Any]] = [json.loads(line) for line in whole]
    assert {line["process"] for line in lines} == {"api", "scheduler"}
    (named,) = [line for line in lines if line.get("rid") == "named"]
    assert (named["path"], named["status"], named["output_tokens"]) == ("/generate", 200, 2)
    assert 0 < named["ttft_s"] <= named["duration_s"]
    assert any(line.get("path") == "/health" for line in lines)
    finished = [line for line in lines if line["logger"] == "umbra.requests"]
    assert finished[-1]["finish_reason"] == "length"
