"""What ranks tell each other while a step runs. Today there is one rank, which knows everything."""

from torch import Tensor

from layers.parallel.shares import Shares

__all__ = ["Collectives"]


class Collectives:
    """The exchanges of one rank."""

    def __init__(self, shares: Shares) -> None:
        """Take this rank's place."""
        self._shares = shares

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return the sum of all ranks' `partial`, added in rank order."""
        assert self._shares.world == 1
        return partial
