"""Which part of a network a rank holds: the one place that divides sizes by ranks.

Layers ask by name for the share of what they hold, so that a rule for one kind of size is written
once.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["AttentionShares", "Share", "Shares", "Size", "UnevenShares", "whole"]

# A scale of quantised weights stands for so many rows and columns: blocks are not divided.
_BLOCK = 128
_WORLDS = (1, 2, 4, 8)

# How ranks share attention: heads of all rows, or rows with all heads.
AttentionShares = Literal["tensor", "data"]


class UnevenShares(ValueError):
    """A size that so many ranks cannot share."""


@dataclass(frozen=True, slots=True)
class Share:
    """Numbers `first` to `first + count` of `total` things."""

    first: int
    count: int
    total: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all of them."""
        return self.count == self.total

    @property
    def part(self) -> slice:
        """Return which of all things these are."""
        return slice(self.first, self.first + self.count)

    def times(self, each: int) -> "Share":
        """Return the share of things of which each of these has `each`."""
        return Share(each * self.first, each * self.count, each * self.total)


# A size that all ranks hold, or a rank's share of one.
Size: TypeAlias = int | Share


def whole(size: Size) -> Share:
    """Return a size as a share."""
    return size if isinstance(size, Share) else Share(0, size, size)


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of one rank among `world` equals.

    attention  "data": each rank has rows of its own; it holds all of what is not an expert

    Each method raises UnevenShares for what cannot be dealt out evenly.
    """

    rank: int = 0
    world: int = 1
    attention: AttentionShares = "tensor"

    def __post_init__(self) -> None:
        if self.world not in _WORLDS or not 0 <= self.rank < self.world:
            raise ValueError(f"there is no rank {self.rank} of {self.world}: 1, 2, 4 or 8 ranks")

    def heads(self, total: int) -> Share:
        """Return this rank's heads of queries."""
        return self._dealt("heads", total)

    def groups(self, total: int) -> Share:
        """Return this rank's groups of heads, which hold its heads."""
        return self._dealt("groups of heads", total)

    def key_heads(self, total: int) -> Share:
        """Return the heads of keys and values that this rank's heads of queries read.

        Where there are fewer than ranks, several ranks hold the same one.
        """
        if self.attention == "tensor" and self.world % total == 0:
            return Share(self.rank * total // self.world, 1, total)
        return self._dealt("heads of keys", total)

    def inner(self, total: int, *, blocks: bool) -> Share:
        """Return this rank's channels inside an expert: columns of one product, rows of the next.

        Their results are summed over ranks, so that shares need not be equal.

        blocks  weights are quantised in blocks, which are not divided
        """
        unit = _BLOCK if blocks else 1
        units = total // unit
        if units < self.world or total % unit:
            raise UnevenShares(
                f"{total} channels of an expert cannot be shared by {self.world} ranks"
            )
        first, last = (units * rank // self.world for rank in (self.rank, self.rank + 1))
        return Share(unit * first, unit * (last - first), total)

    def experts(self, total: int) -> Share:
        """Return this rank's routed experts: all of them, since each is divided."""
        return whole(total)

    def vocabulary(self, total: int) -> Share:
        """Return this rank's rows of the embedding and of the output head."""
        return self._dealt("tokens of the vocabulary", total)

    def _dealt(self, name: str, total: int) -> Share:
        """Return one of `world` equal parts, or all where ranks do not share it."""
        if self.attention == "data":
            return whole(total)
        if total % self.world:
            raise UnevenShares(f"{total} {name} cannot be shared by {self.world} ranks")
        count = total // self.world
        return Share(self.rank * count, count, total)
