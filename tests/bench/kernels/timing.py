"""Times calls inside a CUDA graph, over inputs that do not fit into the L2 cache together."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["copy_bandwidth", "copy_us", "graph_us", "input_sets"]

MAX_SETS = 256
CALLS = 24
REPLAYS = 9
LARGE_COPY_BYTES = 2**31
# What is timed right after gigabytes were used and given back takes up to 6 % longer.
REST_S = 0.1


def input_sets(moved_bytes: int) -> int:
    """Return how many sets of inputs take twice the L2 cache; at least two, at most 256."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return min(MAX_SETS, max(2, -(-2 * cache // max(1, moved_bytes))))


def graph_us(calls: Sequence[Callable[[], Any]]) -> float:
    """Return the median time of one call in microseconds; the calls run in turn.

    The device rests before.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    rounds = -(-CALLS // len(calls))
    graph = torch.cuda.CUDAGraph()
    # Results live until the same call comes again: writes do not all go to one warm place.
    kept: list[Any] = [None] * len(calls)
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for nth, call in enumerate(calls):
                kept[nth] = None
                kept[nth] = call()
    torch.cuda.synchronize()
    time.sleep(REST_S)
    for _ in range(2):
        graph.replay()
    times = [_replay_ms(graph) for _ in range(REPLAYS)]
    return statistics.median(times) * 1e3 / (rounds * len(calls))


def copy_us(moved_bytes: int) -> float:
    """Return the time of a plain copy that reads and writes half of these bytes each."""
    return graph_us([_copy(moved_bytes // 2) for _ in range(input_sets(moved_bytes))])


def copy_bandwidth() -> float:
    """Return bytes a second, read and written, of a large copy."""
    return 2 * LARGE_COPY_BYTES / (graph_us([_copy(LARGE_COPY_BYTES)]) * 1e-6)


def _copy(size: int) -> Callable[[], Any]:
    # An elementwise kernel: the driver's own copy reaches two thirds of what a kernel does.
    words = max(1, size // 4)
    source = torch.randint(2**31 - 1, (words,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return lambda: torch.bitwise_not(source, out=target)


def _replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
