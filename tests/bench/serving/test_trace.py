"""A trace is read without torch: steps by ranges, or by graphs."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.network.kernels_run import Span
from tests.bench.serving.trace import TraceFault, idle_us, merged, read_trace

Event = dict[str, Any]


def event(cat: str, name: str, ts: float, dur: float, correlation: int | None = None) -> Event:
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


# Two steps that the host launches ahead of the device, a copy that belongs to none, a prefill.
EVENTS = [
    event("user_annotation", "step decode 4 rows 4 tokens", 0, 10),
    event("cuda_runtime", "cudaMemcpyAsync", 1, 1, 1),
    event("cuda_runtime", "cudaGraphLaunch", 3, 2, 2),
    event("cuda_runtime", "cudaMemcpyAsync", 12, 1, 3),
    event("user_annotation", "step decode 4 rows 4 tokens", 20, 10),
    event("cuda_runtime", "cudaGraphLaunch", 25, 2, 4),
    event("user_annotation", "step prefill 1 rows 9 tokens", 40, 10),
    event("cuda_driver", "cuLaunchKernelEx", 41, 1, 5),
    event("gpu_user_annotation", "step decode 4 rows 4 tokens", 100, 50),
    event("gpu_memcpy", "Memcpy HtoD", 100, 5, 1),
    event("kernel", "first", 110, 20, 2),
    event("kernel", "second", 130, 20, 2),
    event("gpu_memcpy", "Memcpy DtoH", 155, 5, 3),
    event("kernel", "first", 170, 20, 4),
    event("kernel", "second", 190, 20, 4),
    event("kernel", "prefill", 210, 90, 5),
    event("kernel", "launched before the trace began", 90, 5, 99),
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    {"ph": "i", "name": "Record Window End", "ts": 999},
]


def written(folder: Path, events: list[Event], *, packed: bool = True) -> Path:
    """Return a file with a trace of `events`."""
    data = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    path = folder / ("x.trace.json.gz" if packed else "x.trace.json")
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def test_kernels_of_the_sampling_belong_to_the_step_that_was_launched_last(tmp_path: Path) -> None:
    sampling = [
        event("user_annotation", "sampling", 11, 4),
        event("cuda_runtime", "cudaLaunchKernel", 13, 1, 6),
        event("cuda_runtime", "cudaLaunchKernel", 17, 1, 7),
        event("gpu_user_annotation", "sampling", 150, 10),
        event("kernel", "draw", 152, 2, 6),
        event("kernel", "between", 154, 1, 7),
    ]
    trace = read_trace(written(tmp_path, [*EVENTS, *sampling]))

    assert len(trace.steps) == 3
    names = [[span.name for span in step.spans] for step in trace.steps[:2]]
    assert names == [["Memcpy HtoD", "first", "second", "draw", "Memcpy DtoH"], ["first", "second"]]


@pytest.mark.parametrize("packed", [True, False])
def test_kernels_belong_to_the_step_that_launched_them(tmp_path: Path, packed: bool) -> None:
    trace = read_trace(written(tmp_path, EVENTS, packed=packed))

    assert trace.found_by == "ranges"
    assert [step.phase for step in trace.steps] == ["decode", "decode", "prefill"]
    names = [[span.name for span in step.spans] for step in trace.steps]
    assert names == [["Memcpy HtoD", "first", "second"], ["first", "second"], ["prefill"]]
    assert (trace.steps[0].start_us, trace.steps[0].last.end_us) == (100, 150)
    assert len(trace.spans) == 8


def test_without_ranges_each_graph_is_a_step(tmp_path: Path) -> None:
    events = [each for each in EVENTS if each.get("cat") != "user_annotation"]

    trace = read_trace(written(tmp_path, events))

    assert trace.found_by == "graphs"
    assert [[span.start_us for span in step.spans] for step in trace.steps] == [
        [110, 130],
        [170, 190],
    ]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[1]", b'{"traceEvents": 5}', b"\x1f\x8bno", gzip.compress(b"\xff", mtime=0)],
)
def test_what_is_no_trace_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(data)

    with pytest.raises(TraceFault, match="no chrome trace"):
        read_trace(path)


def test_time_is_idle_where_no_stream_runs() -> None:
    busy = merged([Span("a", 0, 10), Span("b", 2, 5), Span("c", 8, 20), Span("d", 30, 40)])

    assert busy == [(0, 20), (30, 40)]
    assert idle_us(busy, 20, 30) == 10
    assert idle_us(busy, 15, 35) == 10
    assert idle_us(busy, 25, 50) == 15
    assert idle_us(busy, 32, 38) == 0
    assert idle_us(busy, 9, 3) == 0
    assert idle_us(busy, -5, 1) == 5
