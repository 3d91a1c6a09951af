"""Who holds which share of the network: the one place that knows of ranks.

Today there is one rank, which holds everything. Layers ask here for the size of their share and
hand partial sums to `all_reduce`, so that more ranks change this module and not its callers.
"""

from dataclasses import dataclass

import torch

__all__ = ["Shards"]


@dataclass(frozen=True, slots=True)
class Shards:
    """This rank's place among `world` equals."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.world != 1 or self.rank != 0:
            raise ValueError(f"only one rank is supported, got rank {self.rank} of {self.world}")

    def share(self, total: int) -> int:
        """Return how many of `total` heads, groups, experts or rows this rank holds.

        Raises ValueError when they cannot be dealt out evenly.
        """
        if total % self.world:
            raise ValueError(f"{total} cannot be shared by {self.world} ranks")
        return total // self.world

    def first(self, total: int) -> int:
        """Return the index of the first one this rank holds."""
        return self.rank * self.share(total)

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `partial`, added in rank order."""
        return partial
