"""The report on a trace: how busy the device was, and how long it waited between steps."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.network.kernels_run import Span
from tests.bench.serving.gaps import boundaries, main, percentile, report, steady_run
from tests.bench.serving.test_trace import EVENTS, Event, event, written
from tests.bench.serving.trace import Step, read_trace

STEPS = 10


def steady(*, pause: float) -> list[Event]:
    """Return steps of two kernels, 40 us each, and a copy of 5 us in the pause between them."""
    events: list[Event] = []
    for k in range(STEPS):
        host, device = 100.0 * k, 1000 + (100 + pause) * k
        events += [
            event("user_annotation", "step decode 2 rows 2 tokens", host, 30),
            event("cuda_runtime", "cudaGraphLaunch", host + 5, 10, 10 * k + 1),
            event("cuda_runtime", "cudaMemcpyAsync", host + 40, 5, 10 * k + 2),
            event("kernel", "first", device, 40, 10 * k + 1),
            event("kernel", "second", device + 40, 60, 10 * k + 1),
            event("gpu_memcpy", "Memcpy DtoH", device + 101, 5, 10 * k + 2),
        ]
    return events


def test_the_report_tells_what_is_idle_between_steps(tmp_path: Path) -> None:
    lines = report(read_trace(written(tmp_path, steady(pause=25))), skip=2)

    assert lines[0] == (
        "10 decode and 0 prefill steps, found by ranges; of 8 decode steps in a row:"
    )
    assert lines[1] == (
        "host     launches one in p50 30.0 us, max 30.0 us; "
        "the next one follows after p50 70.0 us, max 70.0 us"
    )
    # 8 steps of 100 us, 7 pauses of 25 us, in each of which a copy takes 5 us.
    assert lines[2] == "device   busy 85.64% of 0.975 ms, 0.122 ms a step"
    assert lines[3] == (
        "between  steps it is idle p50 20.00 us, p99 20.00 us, max 20.00 us: 14.36% of the time"
    )
    assert lines[4].split() == ["20.00", "us", "second", "->", "first"]
    assert any(line.endswith("  second") for line in lines)
    assert any(line.startswith("idle 140.0 us of 975.0 us") for line in lines)


def test_steps_that_follow_at_once_leave_no_gap(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, steady(pause=0)))

    assert [each.idle_us for each in boundaries(trace.steps, trace.spans)] == [0] * (STEPS - 1)
    assert "0.00% of the time" in report(trace)[3]


def test_steps_without_ranges_are_graphs_and_that_is_said(tmp_path: Path) -> None:
    events = [each for each in steady(pause=25) if each["cat"] != "user_annotation"]
    lines = report(read_trace(written(tmp_path, events)))

    assert lines[0].endswith("found by graphs; of 8 decode steps in a row:")
    assert lines[1].startswith("(no CPU in it")
    assert "p50 20.00 us" in lines[4]


def test_the_longest_row_of_decode_steps_counts() -> None:
    phases = ["decode", "prefill", "decode", "decode", "decode", "prefill", "decode"]
    steps = [Step(phase, str(k), k, k) for k, phase in enumerate(phases)]

    def names(skip: int, *, traced: bool) -> list[str]:
        return [step.name for step in steady_run(steps, skip, traced=traced)]

    assert names(0, traced=False) == ["2", "3", "4"]
    assert names(2, traced=False) == ["4"]
    assert names(0, traced=True) == []
    for k in (0, 2, 3):
        steps[k].spans.append(Span("a", k, k + 1))
    assert names(0, traced=True) == ["2", "3"]


def test_a_trace_of_the_cpu_tells_of_the_host_only(tmp_path: Path) -> None:
    events = [each for each in steady(pause=0) if each["cat"] == "user_annotation"]
    lines = report(read_trace(written(tmp_path, events)))

    assert lines[1].startswith("host ")
    assert "ask for GPU" in lines[-1]
    few = report(read_trace(written(tmp_path, EVENTS)))
    assert few[1].startswith("too few to tell")
    assert few[2].startswith("idle ")


def test_percentiles_are_values_that_were_seen() -> None:
    values = [1.0, 2.0, 3.0, 4.0]

    assert [percentile(values, share) for share in (0, 0.5, 0.51, 0.99, 1)] == [1, 2, 3, 4, 4]


def test_the_command_reads_a_file_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(written(tmp_path, steady(pause=3))), "--skip", "0"]) == 0
    assert "of 10 decode steps in a row" in capsys.readouterr().out
    assert main([str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


def test_no_torch_is_wanted() -> None:
    code = "import sys, tests.bench.serving.gaps; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
