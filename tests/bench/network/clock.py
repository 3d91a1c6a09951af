"""Times calls on a device, and stages of a set-up; on the CPU by the host's clock."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch

from layers.blocks.side_stream import first_stream

__all__ = ["replayed", "rest", "stage", "times_ms", "wait"]

WARM_UPS = 2
# After half a minute of prefill an H200 holds its clocks down: 1,965 MHz instead of 1,980.
REST_S = 3.0


def wait(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rest(device: torch.device) -> None:
    """Leave the device idle: its clocks must not be those that the work before led to."""
    wait(device)
    if device.type == "cuda":
        time.sleep(REST_S)


@contextmanager
def stage(label: str, device: torch.device) -> Iterator[None]:
    """Print how long what is done inside took."""
    start = time.perf_counter()
    yield
    wait(device)
    print(f"# {label}: {time.perf_counter() - start:.1f} s", flush=True)


def replayed(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return what runs `step` again: a CUDA graph of it, or on the CPU the step itself.

    It runs WARM_UPS times before, on a side stream, so that everything is compiled.
    """
    if device.type != "cuda":
        for _ in range(WARM_UPS):
            step()
        return step
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=first_stream(device)):
        step()
    return graph.replay


def times_ms(call: Callable[[], None], count: int, device: torch.device) -> list[float]:
    """Return the milliseconds of each of `count` calls, given to the device one after another."""
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(count):
            call()
            marks.append(time.perf_counter())
        return [(end - start) * 1e3 for start, end in pairwise(marks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    wait(device)
    return [start.elapsed_time(end) for start, end in pairwise(events)]
