"""Whether a server's device waits between decode steps.

    python -m tests.bench.serving.gaps TRACE

reads a trace of /start_profile and prints, of the longest row of decode steps in it: how busy the
device was, how long it was idle between one step's last kernel and the next one's first, which
kernels took the time, and the longest gaps of all. It wants no torch and no GPU.

The profiler itself costs time on the device, around each kernel: what is idle in a trace is an
upper bound.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.network.kernels_run import NAME_WIDTH, Span, gap_table, kernel_table
from tests.bench.serving.trace import Step, Trace, TraceFault, idle_us, merged, read_trace

SKIPPED = 2
TOP_KERNELS = 30
LONGEST = 5


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where a step ends and the next one begins; `idle_us` is what nothing ran for."""

    idle_us: float
    before: Span
    after: Span


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report of a trace; return the process' exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.serving.gaps", description=__doc__)
    parser.add_argument("trace", type=Path, help="chrome trace, .json or .json.gz")
    parser.add_argument(
        "--skip",
        type=int,
        default=SKIPPED,
        help="steps to leave out at the beginning: the first ones pay for the profiler's start",
    )
    options = parser.parse_args(argv)
    try:
        trace = read_trace(options.trace)
    except (OSError, TraceFault) as fault:
        print(fault, file=sys.stderr)
        return 1
    print("\n".join(report(trace, skip=options.skip)))
    return 0


def report(trace: Trace, *, skip: int = SKIPPED) -> list[str]:
    """Return the lines of a report."""
    run = steady_run(trace.steps, skip, traced=bool(trace.spans))
    phases = [step.phase for step in trace.steps]
    lines = [
        f"{phases.count('decode')} decode and {phases.count('prefill')} prefill steps, found by "
        f"{trace.found_by}; of {len(run)} decode steps in a row:"
    ]
    if trace.found_by == "graphs":
        lines.append("(no CPU in it: sampling, and prefill steps, count as between the steps)")
    if len(run) < 2:
        return [*lines, "too few to tell; of all there is:", *gap_table(trace.spans)]
    lines += _host_lines(run)
    if not trace.spans:
        return [*lines, "nothing ran on the device, or it was not traced: ask for GPU"]
    start, end = run[0].start_us, run[-1].last.end_us
    inside = [span for span in trace.spans if start <= span.start_us < end]
    tables = kernel_table(inside, steps=len(run))
    return [
        *lines,
        *_device_lines(run, inside),
        "",
        *tables[: TOP_KERNELS + 1],
        *tables[TOP_KERNELS + 1 :][-1:],
        "",
        *gap_table(inside),
    ]


def steady_run(steps: Sequence[Step], skip: int, *, traced: bool) -> list[Step]:
    """Return the longest row of decode steps with no prefill between, without its first `skip`.

    traced  whether the device was: then a step of which nothing is known there ends a row
    """

    def fits(step: Step) -> bool:
        return step.phase == "decode" and (bool(step.spans) or not traced)

    runs = [list(run) for good, run in itertools.groupby(steps, fits) if good]
    return max(runs, key=len, default=[])[skip:]


def boundaries(run: Sequence[Step], spans: Sequence[Span]) -> list[Boundary]:
    """Return what lies between each step of `run` and the next, on the device.

    spans  all that ran there: what belongs to no step, such as a copy of tokens, is no idle time
    """
    busy = merged(spans)
    found: list[Boundary] = []
    for step, following in itertools.pairwise(run):
        last, first = step.last, following.spans[0]
        found.append(Boundary(idle_us(busy, last.end_us, first.start_us), last, first))
    return found


def _device_lines(run: Sequence[Step], inside: Sequence[Span]) -> list[str]:
    start, end = run[0].start_us, run[-1].last.end_us
    whole = end - start
    idle = idle_us(merged(inside), start, end)
    between = boundaries(run, inside)
    gaps = sorted(each.idle_us for each in between)
    share = sum(gaps) / whole if whole else 0.0
    lines = [
        f"device   busy {1 - idle / whole if whole else 0.0:.2%} of {whole / 1e3:.3f} ms, "
        f"{whole / 1e3 / len(run):.3f} ms a step",
        f"between  steps it is idle p50 {percentile(gaps, 0.5):.2f} us, "
        f"p99 {percentile(gaps, 0.99):.2f} us, max {gaps[-1]:.2f} us: {share:.2%} of the time",
    ]
    longest = sorted(between, key=lambda each: each.idle_us, reverse=True)[:LONGEST]
    half = NAME_WIDTH // 2
    return lines + [
        f"{each.idle_us:>10.2f} us  {each.before.name[:half]} -> {each.after.name[:half]}"
        for each in longest
        if each.idle_us > 0
    ]


def _host_lines(run: Sequence[Step]) -> list[str]:
    """Return how long launches took, and how long the host did something else between them."""
    launches = sorted(step.host_end_us - step.host_start_us for step in run)
    pauses = sorted(b.host_start_us - a.host_end_us for a, b in itertools.pairwise(run))
    return [
        f"host     launches one in p50 {percentile(launches, 0.5):.1f} us, "
        f"max {launches[-1]:.1f} us; the next one follows after p50 "
        f"{percentile(pauses, 0.5):.1f} us, max {pauses[-1]:.1f} us"
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least of the sorted `values` that so large a share of them does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


if __name__ == "__main__":
    sys.exit(main())
