"""Ranks as threads of one process: sharding without processes."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from layers.parallel.ranks import HostRanks
from layers.parallel.shares import AttentionShares, Shares

T = TypeVar("T")
_WAIT_S = 60


class Meeting:
    """Where the threads leave what they give, and read what all gave."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=_WAIT_S)
        self.parts: list[Tensor | None] = [None] * world


class ThreadRanks(HostRanks):
    """One of several threads."""

    def __init__(self, shares: Shares, meeting: Meeting) -> None:
        super().__init__(shares)
        self._meeting = meeting

    def traded(self, rows: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Return what others have for this rank; see `Ranks`."""
        rank = self.shares.rank
        sizes = self._all(torch.tensor([*given]))
        every = self._all(rows)
        parts = [one.split(size.tolist())[rank] for one, size in zip(every, sizes, strict=True)]
        assert [len(part) for part in parts] == [*taken]
        return torch.cat(parts)

    def _all(self, part: Tensor) -> list[Tensor]:
        meeting = self._meeting
        meeting.parts[self.shares.rank] = part
        meeting.barrier.wait()
        parts = [one for one in meeting.parts if one is not None]
        meeting.barrier.wait()
        return parts


def in_ranks(
    world: int, run: Callable[[ThreadRanks], T], *, attention: AttentionShares = "tensor"
) -> Sequence[T]:
    """Return what `run` returns in each of `world` threads, in the order of ranks."""
    meeting = Meeting(world)

    def one(rank: int) -> T:
        try:
            return run(ThreadRanks(Shares(rank, world, attention), meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(one, range(world)))
