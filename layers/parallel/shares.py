"""Which part of a network a rank holds: the one place that divides sizes by ranks.

Layers ask by name for the share of what they hold, so that a rule for one kind of size is written
once. Today there is one rank, which holds everything.
"""

from dataclasses import dataclass

__all__ = ["Share", "Shares"]

# A scale of quantised weights stands for so many rows and columns: blocks are not divided.
_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Share:
    """Numbers `first` to `first + count` of `total` things."""

    first: int
    count: int
    total: int


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of one rank among `world` equals. Every method raises ValueError for what cannot
    be dealt out evenly.
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.world != 1 or self.rank != 0:
            raise ValueError(f"only one rank is supported, got rank {self.rank} of {self.world}")

    def heads(self, total: int) -> Share:
        """Return this rank's heads of queries."""
        return self._dealt("heads", total)

    def groups(self, total: int) -> Share:
        """Return this rank's groups of heads, which hold its heads."""
        return self._dealt("groups", total)

    def columns(self, total: int) -> Share:
        """Return this rank's output channels of a product, whole blocks of 128."""
        return self._dealt("columns", total, unit=_BLOCK)

    def rows(self, total: int) -> Share:
        """Return this rank's input channels of a product whose results are summed over ranks."""
        return self._dealt("rows", total, unit=_BLOCK)

    def experts(self, total: int) -> Share:
        """Return this rank's routed experts."""
        return self._dealt("experts", total)

    def vocabulary(self, total: int) -> Share:
        """Return this rank's rows of the embedding and of the output head."""
        return self._dealt("vocabulary", total)

    def _dealt(self, name: str, total: int, unit: int = 1) -> Share:
        """Return one of `world` equal parts; a whole is not cut, and need not be whole units."""
        if self.world > 1 and total % (self.world * unit):
            raise ValueError(f"{total} {name} cannot be shared by {self.world} ranks")
        count = total // self.world
        return Share(self.rank * count, count, total)
