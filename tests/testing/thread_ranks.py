"""Ranks as threads of one process: sharding without processes."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from layers.parallel.ranks import ordered_sum
from layers.parallel.shares import Shares

T = TypeVar("T")
_WAIT_S = 60


class _Meeting:
    """Where the threads leave what they give, and read what all gave."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=_WAIT_S)
        self.parts: list[Tensor | None] = [None] * world


class ThreadRanks:
    """One of several threads; a `Ranks` with the arithmetic of `HostRanks`."""

    def __init__(self, shares: Shares, meeting: _Meeting) -> None:
        self.shares, self._meeting = shares, meeting

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return the sum in the order of ranks."""
        return ordered_sum(self._all(partial))

    def gathered(self, part: Tensor) -> Tensor:
        """Return all parts side by side."""
        return torch.cat(self._all(part), 1)

    def least(self, value: int) -> int:
        """Return the least number."""
        return int(torch.stack(self._all(torch.tensor(value))).min())

    def _all(self, part: Tensor) -> list[Tensor]:
        meeting = self._meeting
        meeting.parts[self.shares.rank] = part
        meeting.barrier.wait()
        parts = [one for one in meeting.parts if one is not None]
        meeting.barrier.wait()
        return parts


def in_ranks(world: int, run: Callable[[ThreadRanks], T]) -> Sequence[T]:
    """Return what `run` returns in each of `world` threads, in the order of ranks."""
    meeting = _Meeting(world)

    def one(rank: int) -> T:
        try:
            return run(ThreadRanks(Shares(rank, world), meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(one, range(world)))
