"""A trace that a server wrote, read without torch: what the device did, step by step."""

import bisect
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.bench.network.kernels_run import Span

__all__ = ["Step", "Trace", "TraceFault", "idle_us", "merged", "read_trace"]

Event = dict[str, Any]

# As `runtime.executor.step_profiler` writes them.
_SAMPLING = "sampling"
_RANGE = re.compile(r"step (?P<phase>prefill|decode) (?P<rows>\d+) rows \d+ tokens")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")


class TraceFault(Exception):
    """A file that is no trace."""


@dataclass(slots=True)
class Step:
    """One step: when the host launched it, and what of it ran on the device, in microseconds.

    spans  in the order of their beginning; none in a trace of the CPU alone
    """

    phase: str
    name: str
    host_start_us: float
    host_end_us: float
    spans: list[Span] = field(default_factory=list[Span])

    @property
    def start_us(self) -> float:
        """When its first kernel began."""
        return self.spans[0].start_us

    @property
    def last(self) -> Span:
        """Its kernel that ended last."""
        return max(self.spans, key=lambda span: span.end_us)


@dataclass(frozen=True, slots=True)
class Trace:
    """What a file says.

    spans     everything on the device, in the order of its beginning
    steps     in the order of their launches
    found_by  the ranges around launches, or launches of graphs where there are no ranges: then
              only what is in the graphs belongs to steps
    """

    spans: list[Span]
    steps: list[Step]
    found_by: Literal["ranges", "graphs"]


def read_trace(path: Path) -> Trace:
    """Return the trace in a file of JSON, packed or not. Raises OSError, TraceFault."""
    try:
        data = path.read_bytes()
        whole = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        events = [e for e in whole["traceEvents"] if e.get("ph") == "X" and "ts" in e]
    except (ValueError, EOFError, KeyError, TypeError, AttributeError) as fault:
        raise TraceFault(f"{path} is no chrome trace: {fault}") from fault
    events.sort(key=lambda event: float(event["ts"]))
    calls = [event for event in events if event.get("cat") in _LAUNCHES]
    steps = [step for event in events if (step := _range_step(event)) is not None]
    sampling = [_step(e, "") for e in events if _is_range(e) and e["name"] == _SAMPLING]
    graphs = [_step(e, "decode") for e in calls if str(e["name"]).startswith(_GRAPH_LAUNCHES)]
    launched = {
        event["args"]["correlation"]: float(event["ts"])
        for event in calls
        if "correlation" in event.get("args", {})
    }
    found_by: Literal["ranges", "graphs"] = "ranges" if steps else "graphs"
    steps = steps or graphs
    spans: list[Span] = []
    for event in events:
        if event.get("cat") in _DEVICE:
            spans.append(_span(event))
            at = launched.get(event.get("args", {}).get("correlation"))
            step = None if at is None else _at(at, steps) or _sampled_at(at, sampling, steps)
            if step is not None:
                step.spans.append(spans[-1])
    return Trace(spans, steps, found_by)


def _is_range(event: Event) -> bool:
    # The same range comes again as the device saw it, with "gpu_user_annotation".
    return event.get("cat") == "user_annotation"


def _range_step(event: Event) -> Step | None:
    found = _RANGE.fullmatch(str(event["name"])) if _is_range(event) else None
    return None if found is None else _step(event, found["phase"])


def _step(event: Event, phase: str) -> Step:
    start = float(event["ts"])
    return Step(phase, str(event["name"]), start, start + float(event.get("dur", 0)))


def _span(event: Event) -> Span:
    start = float(event["ts"])
    return Span(str(event["name"]), start, start + float(event.get("dur", 0)))


def _at(time_us: float, ranges: Sequence[Step]) -> Step | None:
    """Return the range that the time is in."""
    found = _begun(time_us, ranges)
    return found if found is not None and time_us <= found.host_end_us else None


def _begun(time_us: float, ranges: Sequence[Step]) -> Step | None:
    """Return the last range that had begun then."""
    index = bisect.bisect_right(ranges, time_us, key=lambda step: step.host_start_us) - 1
    return ranges[index] if index >= 0 else None


def _sampled_at(time_us: float, sampling: Sequence[Step], steps: Sequence[Step]) -> Step | None:
    """Return the step that was being sampled then: the one that was launched last."""
    return None if _at(time_us, sampling) is None else _begun(time_us, steps)


def merged(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Return when anything of `spans`, sorted by their beginning, ran: intervals that are apart."""
    busy: list[tuple[float, float]] = []
    for span in spans:
        if busy and span.start_us <= busy[-1][1]:
            busy[-1] = (busy[-1][0], max(busy[-1][1], span.end_us))
        else:
            busy.append((span.start_us, span.end_us))
    return busy


def idle_us(busy: Sequence[tuple[float, float]], start_us: float, end_us: float) -> float:
    """Return for how long nothing ran between two times; 0 where the second is the earlier."""
    if end_us <= start_us:
        return 0.0
    idle, now = 0.0, start_us
    index = max(0, bisect.bisect_right(busy, (start_us, float("inf"))) - 1)
    for first, last in busy[index:]:
        if first >= end_us:
            break
        idle += max(0.0, first - now)
        now = max(now, last)
    return idle + max(0.0, end_us - now)
