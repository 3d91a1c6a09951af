"""What ranks tell each other while a step runs, and who they are.

All ranks get the same bits from each exchange, whatever the batch: sums are taken in float32 and in
the order of ranks.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from layers.parallel.shares import Shares

__all__ = ["HostRanks", "OneRank", "Ranks", "ordered_sum"]


class Ranks(Protocol):
    """This rank, and its exchanges with the others; all ranks make the same calls in one order."""

    @property
    def shares(self) -> Shares:
        """Return what this rank holds."""
        ...

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return the sum of all ranks' `partial`, of any shape, in its dtype."""
        ...

    def gathered(self, part: Tensor) -> Tensor:
        """Return all ranks' `part` [T, N] side by side, [T, world * N]."""
        ...

    def least(self, value: int) -> int:
        """Return the least of all ranks' numbers; the host waits for it."""
        ...


def ordered_sum(parts: Sequence[Tensor] | Tensor) -> Tensor:
    """Return the sum of all parts in their dtype, added in float32, the first ones first."""
    total = parts[0].to(torch.float32)
    for part in parts[1:]:
        total = total + part
    return total.to(parts[0].dtype)


class OneRank:
    """A rank that is alone."""

    shares = Shares()

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return it."""
        return partial

    def gathered(self, part: Tensor) -> Tensor:
        """Return it."""
        return part

    def least(self, value: int) -> int:
        """Return it."""
        return value


class HostRanks:
    """Ranks that exchange tensors in host memory: the reference of all others."""

    def __init__(self, shares: Shares) -> None:
        """Take this rank's place in the group that `torch.distributed` was initialised with."""
        self.shares = shares

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return the sum; see `Ranks`."""
        return ordered_sum(self._all(partial))

    def gathered(self, part: Tensor) -> Tensor:
        """Return all parts; see `Ranks`."""
        return torch.cat(self._all(part), 1)

    def least(self, value: int) -> int:
        """Return the least; see `Ranks`."""
        return int(torch.stack(self._all(torch.tensor(value))).min())

    def _all(self, part: Tensor) -> list[Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.shares.world)]
        dist.all_gather(parts, part)
        return parts
