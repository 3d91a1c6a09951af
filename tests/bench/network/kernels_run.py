"""Which kernels ran, for how long, and what lay between them."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Span", "gap_table", "kernel_table", "profiled"]

NAME_WIDTH = 90
LONGEST_GAPS = 8


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel or copy on the device, in microseconds of the profiler's clock."""

    name: str
    start_us: float
    end_us: float


def profiled(call: Callable[[], None], *, count: int, trace: Path | None) -> list[Span]:
    """Return what the device did in `count` calls, in the order of its beginning.

    trace  file for a chrome trace; packed if its name ends in .gz
    """
    # Here: tables are made of traces where there is no torch, too.
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(trace))
    events: Any = found.events()
    spans = [
        Span(str(event.name), float(event.time_range.start), float(event.time_range.end))
        for event in events
        if event.device_type.name == "CUDA"
    ]
    return sorted(spans, key=lambda span: span.start_us)


def kernel_table(spans: Sequence[Span], *, steps: int) -> list[str]:
    """Return lines of kernels by their total time, as one step has it."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for span in spans:
        times[span.name].append(span.end_us - span.start_us)
    total = sum(map(sum, times.values()))
    lines = [f"{'us a step':>10}{'share':>7}{'count':>7}{'us each':>9}  kernel"]
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1])):
        mine = sum(each)
        share, count = mine / total if total else 0.0, len(each) / steps
        lines.append(
            f"{mine / steps:>10.1f}{share:>7.3f}{count:>7.1f}{mine / len(each):>9.2f}  "
            f"{name[:NAME_WIDTH]}"
        )
    lines.append(f"{total / steps:>10.1f}{1:>7.3f}{len(spans) / steps:>7.1f}{'':>9}  all")
    return lines


def gap_table(spans: Sequence[Span]) -> list[str]:
    """Return how long the device was idle between its first and last kernel, and where most.

    spans  in the order of their beginning; those of several streams may overlap
    """
    if not spans:
        return ["nothing ran on the device"]
    gaps: list[tuple[float, str, str]] = []
    last = spans[0]
    for span in spans[1:]:
        if span.start_us > last.end_us:
            gaps.append((span.start_us - last.end_us, last.name, span.name))
        if span.end_us > last.end_us:
            last = span
    whole, idle = last.end_us - spans[0].start_us, sum(gap for gap, *_ in gaps)
    share = idle / whole if whole else 0.0
    lines = [f"idle {idle:.1f} us of {whole:.1f} us, {share:.1%}; {len(gaps)} gaps, the longest:"]
    for gap, before, after in sorted(gaps, reverse=True)[:LONGEST_GAPS]:
        lines.append(f"{gap:>10.2f} us  {before[:45]} -> {after[:45]}")
    return lines
