"""A whole server on a GPU: graphs and overlap change no token, facts tell what runs, memory fits.

`python -m pytest tests/end_to_end/test_cuda_server.py` on a machine with a CUDA device.
"""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.bench.serving.gaps import report
from tests.bench.serving.trace import Trace, read_trace
from tests.testing.server_process import LAUNCHER, ROOT, ServerProcess, running_server

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PLAIN = ("--disable-cuda-graph", "--disable-overlap-schedule")
READY_S = 300.0
TRACE_S = 60.0


def flags(folder: Path) -> tuple[str, ...]:
    return (
        *("--model-path", str(folder), "--device", "cuda", "--mem-fraction-static", "0.3"),
        *("--max-running-requests", "8", "--chunked-prefill-size", "512", "--deterministic"),
        *("--context-length", "4096"),
    )


def prompt(length: int, seed: int) -> list[int]:
    return [0, *((31 * seed + 7 * i) % 500 + 2 for i in range(length - 1))]


def answers(server: ServerProcess) -> list[list[int]]:
    """Return the tokens of many requests at once, then of next turns of some of them."""

    def ask(ids: list[int]) -> list[int]:
        return server.generate(ids, max_new_tokens=24, ignore_eos=True)["output_ids"]

    first = [prompt(40 * k + 3, k) for k in range(12)]
    with ThreadPoolExecutor(len(first)) as pool:
        told = list(pool.map(ask, first))
        again = [[*ids, *said, 5, 6] for ids, said in zip(first[:4], told, strict=False)]
        return told + list(pool.map(ask, again))


def traced(server: ServerProcess, activities: list[str]) -> Trace:
    """Return the trace of a few steps of one row."""
    body = {"num_steps": 12, "activities": activities}
    told = server.post("/start_profile", body)
    assert told.status_code == 200, told.text
    server.generate(prompt(20, 1), max_new_tokens=24, ignore_eos=True)
    file, deadline = Path(told.json()["file"]), time.monotonic() + TRACE_S
    while not file.exists():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)
    return read_trace(file)


@dataclass
class Fast:
    """What a server with graphs and overlap said; `fault` is what its profiles came to."""

    answers: list[list[int]]
    info: dict[str, Any]
    metrics: str
    traces: list[Trace] = field(default_factory=list[Trace])
    fault: Exception | None = None


@pytest.fixture(scope="module")
def fast(stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Fast:
    """Answers first, profiles last: a profile that fails spoils nothing else."""
    found: Fast | None = None
    folder = str(tmp_path_factory.mktemp("traces"))
    try:
        with running_server(*flags(stand_in), "--profile-dir", folder, ready_s=READY_S) as server:
            said, info = answers(server), server.get("/server_info")
            found = Fast(said, info, server.client.get("/metrics").text)
            for activities in (["CPU", "GPU"], ["GPU"]):
                found.traces.append(traced(server, activities))
    except (AssertionError, httpx.HTTPError) as fault:
        if found is None:
            raise
        found.fault = fault
    return found


def test_a_trace_tells_what_the_device_did_by_step(fast: Fast) -> None:
    assert fast.fault is None, fast.fault
    both, device = fast.traces

    assert (both.found_by, device.found_by) == ("ranges", "graphs")
    for trace in fast.traces:
        decode = [step for step in trace.steps if step.phase == "decode"]
        assert len(decode) >= 8
        assert all(len(step.spans) > 10 for step in decode)
        assert any(line.startswith("between") for line in report(trace))


def test_graphs_and_overlap_change_no_token(stand_in: Path, fast: Fast) -> None:
    info, metrics = fast.info, fast.metrics
    with running_server(*flags(stand_in), *PLAIN, ready_s=READY_S) as server:
        plain, slow_info = answers(server), server.get("/server_info")

    assert fast.answers == plain
    assert (info["device"], info["dtype"], info["record_format"]) == ("cuda", "bfloat16", "fp8")
    assert (info["cuda_graph"], info["overlap"]) == (True, True)
    assert (slow_info["cuda_graph"], slow_info["overlap"]) == (False, False)
    assert info["max_running_requests"] == 8
    for name in ("device_name", "backends", "weight_bytes", "activation_bytes", "graph_bytes"):
        assert info[name], name
    assert slow_info["graph_bytes"] == 0
    told = [line for line in metrics.splitlines() if line.startswith("sglang:is_cuda_graph")]
    assert [line.split()[-1] for line in told] == ["1.0"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--kv-cache-bytes", str(1 << 42)), "lower it"),
        (("--mem-fraction-static", "0.001"), "raise --mem-fraction-static"),
        (("--dtype", "float32"), "--device cpu"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_does_not_fit_is_told_before_serving(
    stand_in: Path, more: tuple[str, ...], words: str
) -> None:
    command = [sys.executable, str(LAUNCHER), *flags(stand_in), *more]

    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=READY_S, check=False
    )

    assert ended.returncode == 2
    assert words in ended.stderr
