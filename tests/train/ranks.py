"""The processes that share the steps of a run, one on each GPU: `torchrun` starts them.

The first one reads the data, keeps the log and writes the state; all hold the same parameters, and
move them by the same gradients. A run has the same rows whatever the number of its processes.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from tests.train.phases import Phase
from tests.train.source import Rows, Source

# Gradients travel over NVLink, rows and the word to stop over the host.
_BACKENDS = "cpu:gloo,cuda:nccl"


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of the run; alone, it has nobody to tell.

    rank   its number; 0 leads
    count  of processes
    """

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process reads, logs and writes."""
        return self.rank == 0

    def part(self, rows: int) -> slice:
        """Return which of a step's rows are this process's. Raises ValueError if some have more."""
        if rows % self.count:
            raise ValueError(f"{self.count} processes cannot share {rows} rows evenly")
        each = rows // self.count
        return slice(self.rank * each, (self.rank + 1) * each)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one dtype and device by their sums over the processes."""
        if self.count == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def follow(self, tensors: Sequence[Tensor]) -> None:
        """Take the first process's values."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def agreed(self, flag: bool) -> bool:
        """Return what the first process says."""
        told = torch.tensor(int(flag))
        self.follow([told])
        return bool(told)

    def part_ways(self) -> None:
        """End what `joined` began."""
        if self.count > 1:
            dist.destroy_process_group()


def joined() -> Ranks:
    """Return this process among those that `torchrun` started; alone without it.

    Its GPU becomes the current one.
    """
    if "RANK" not in os.environ:
        return Ranks()
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(_BACKENDS if gpu else "gloo")
    return Ranks(dist.get_rank(), dist.get_world_size())


class SharedSource:
    """Rows that the first process reads and tells the others."""

    def __init__(self, source: Source, ranks: Ranks) -> None:
        """Only the first process opens `source`."""
        self._source, self._ranks = source, ranks

    @contextmanager
    def open(self, phase: Phase, step: int) -> Iterator[Rows]:
        """Yield the rows of `phase` from step number `step` of the run on."""
        if self._ranks.leads:
            with self._source.open(phase, step) as rows:
                yield _Told(phase, self._ranks, rows)
        else:
            yield _Told(phase, self._ranks, None)


class _Told:
    def __init__(self, phase: Phase, ranks: Ranks, rows: Rows | None) -> None:
        self._shape, self._ranks, self._rows = (phase.rows, phase.length), ranks, rows

    def next(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        if self._rows is None:
            ids, weights = np.empty(self._shape, np.int64), np.empty(self._shape, np.float32)
        else:
            ids, weights = self._rows.next()
        self._ranks.follow([torch.from_numpy(ids), torch.from_numpy(weights)])
        return ids, weights
