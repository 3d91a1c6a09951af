"""Decode steps as CUDA graphs: captured once for a ladder of batch sizes, replayed ever after."""

import bisect
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from layers.blocks.side_stream import first_stream

__all__ = ["Capture", "Captured", "CudaCapture", "DecodeGraphs", "graph_sizes", "uncollected"]

# What is compiled, tuned or loaded at first use is so before the capture, which forbids it.
WARM_UPS = 2
_FIRST_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph: `replay` computes `output` anew, from the buffers that its run read."""

    replay: Callable[[], None]
    output: Tensor


class Capture(Protocol):
    """Makes a graph of a run."""

    def __call__(self, run: Callable[[], Tensor]) -> Captured:
        """Capture what `run` launches."""
        ...


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector of reference cycles away.

    A graph that it finds during a capture is destroyed, which no device permits then: the capture
    would fail.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CudaCapture:
    """Captures CUDA graphs that share one memory pool: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = first_stream(torch.device("cuda", torch.cuda.current_device()))

    def __call__(self, run: Callable[[], Tensor]) -> Captured:
        """Capture what `run` launches."""
        graph = torch.cuda.CUDAGraph()
        with uncollected(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            output = run()
        return Captured(graph.replay, output)


def graph_sizes(wanted: Sequence[int], rows: int) -> tuple[int, ...]:
    """Return the batch sizes to capture, ascending, none above `rows`.

    wanted  by flag; empty: a ladder that wastes a third of a batch at most, up to `rows`
    """
    if wanted:
        return tuple(sorted({size for size in wanted if size <= rows}))
    sizes = [*_FIRST_SIZES]
    while sizes[-1] < rows:
        # 64, 96, 128, 192, 256: by halves and thirds in turn.
        power = 1 << (sizes[-1].bit_length() - 1)
        sizes.append(2 * power if sizes[-1] > power else power + power // 2)
    return (*(size for size in sizes if size < rows), rows)


class DecodeGraphs:
    """Graphs of decode steps; a step takes the smallest that holds its rows.

    sizes  of the batches, ascending
    """

    def __init__(
        self, run: Callable[[int], Tensor], sizes: Iterable[int], *, capture: Capture
    ) -> None:
        """Capture all graphs, the largest first: the smaller ones find room in its memory.

        run  launches a decode step of so many rows and returns its logits, [rows, V]
        """
        self.sizes = tuple(sorted(sizes))
        self._graphs: dict[int, Captured] = {}
        for size in self.sizes[::-1]:
            for _ in range(WARM_UPS):
                run(size)
            self._graphs[size] = capture(lambda size=size: run(size))

    def size_for(self, rows: int) -> int | None:
        """Return the smallest size that holds so many rows; None: there is none."""
        index = bisect.bisect_left(self.sizes, rows)
        return self.sizes[index] if index < len(self.sizes) else None

    def replay(self, size: int) -> Tensor:
        """Launch the graph of `size` rows; its logits are there until the next replay."""
        captured = self._graphs[size]
        captured.replay()
        return captured.output
