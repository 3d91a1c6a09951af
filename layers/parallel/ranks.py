"""What ranks tell each other while a step runs, and who they are.

All ranks get the same bits from each exchange, whatever the batch: sums are taken in float32 and in
the order of ranks.

Between two blocks of a network, streams are mixed token by token. In a step of many tokens each
rank mixes a share of them (`Dealt`): then a block's results are summed where they are mixed, and
only the next block's input is sent to all. In a step of few, all ranks mix all (`Undealt`).
Ranks that have rows of their own are another case: `layers.parallel.own_rows`.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from jit_kernels.ordered_sum import ordered_sum
from layers.parallel.shares import Shares

__all__ = ["Deal", "Dealt", "HostRanks", "Moves", "OneRank", "Ranks", "Undealt", "all_have_some"]


class Deal(Protocol):
    """Which of a step's T tokens this rank mixes; they are t in number."""

    def summed(self, partial: Tensor) -> Tensor:
        """Return the sum of all ranks' `partial` [T, d] for this rank's tokens, [t, d]."""
        ...

    def mine(self, every: Tensor) -> Tensor:
        """Return what there is of this rank's tokens, [t, ...] of [T, ...]."""
        ...

    def every(self, mine: Tensor) -> Tensor:
        """Return what all ranks have of their tokens, [T, ...] of each one's [t, ...]."""
        ...


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

    def deal(self, tokens: int, width: int) -> Deal:
        """Return who mixes which tokens of a step; `width` channels each are sent.

        Where ranks have rows of their own these are this rank's tokens, and it mixes all.
        """
        ...

    def collected(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return all ranks' rows; see `layers.parallel.own_rows.RowMoves`."""
        ...

    def returned(self, partial: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the sums of this rank's rows; see `layers.parallel.own_rows.RowMoves`."""
        ...

    def traded(self, rows: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Return what other ranks have for this one, rank by rank, [sum of taken, ...].

        rows   [sum of given, ...] what this rank has for others, rank by rank
        given  rows for each rank, and
        taken  from each, 0 for none; to itself a rank gives as many as it takes
        """
        ...

    def least(self, value: int) -> int:
        """Return the least of all ranks' numbers; the host waits for it."""
        ...


class Moves(Protocol):
    """How ranks send each other shares of a step's tokens."""

    @property
    def shares(self) -> Shares:
        """Return what this rank holds."""
        ...

    def swapped(self, rows: Tensor, size: int) -> Tensor:
        """Return what each rank has of this rank's rows, [world, t, ...].

        rows  [T, ...], of which each rank in turn gets `size`, as long as there are some
        """
        ...

    def stacked(self, rows: Tensor) -> Tensor:
        """Return all ranks' rows, [world * t, ...] of each one's [t, ...]."""
        ...


class Undealt:
    """All ranks mix all tokens."""

    def __init__(self, ranks: Ranks) -> None:
        """Take who sums."""
        self._ranks = ranks

    def summed(self, partial: Tensor) -> Tensor:
        """Return the sum; see `Deal`."""
        return self._ranks.all_reduce(partial)

    def mine(self, every: Tensor) -> Tensor:
        """Return it."""
        return every

    def every(self, mine: Tensor) -> Tensor:
        """Return it."""
        return mine


def all_have_some(tokens: int, world: int) -> bool:
    """Return whether `Dealt` gives each rank a token."""
    return tokens > -(-tokens // world) * (world - 1)


class Dealt:
    """Each rank mixes the tokens that follow those of the rank before, the last one the fewest."""

    def __init__(self, moves: Moves, tokens: int) -> None:
        """Deal out so many tokens, of which each rank must get some."""
        shares = moves.shares
        self._moves, self._tokens, self._size = moves, tokens, -(-tokens // shares.world)
        first = self._size * shares.rank
        self._mine = slice(first, min(first + self._size, tokens))

    def summed(self, partial: Tensor) -> Tensor:
        """Return the sum; see `Deal`."""
        return ordered_sum(self._moves.swapped(partial, self._size))

    def mine(self, every: Tensor) -> Tensor:
        """Return the part; see `Deal`."""
        return every[self._mine]

    def every(self, mine: Tensor) -> Tensor:
        """Return all parts; see `Deal`."""
        short = self._size - len(mine)
        if short:
            mine = torch.cat((mine, mine.new_zeros((short, *mine.shape[1:]))))
        return self._moves.stacked(mine)[: self._tokens]


class OneRank:
    """A rank that is alone."""

    shares = Shares()

    def deal(self, tokens: int, width: int) -> Deal:
        """Return that it mixes all."""
        return Undealt(self)

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Return it."""
        return partial

    def gathered(self, part: Tensor) -> Tensor:
        """Return it."""
        return part

    def collected(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return them."""
        return rows

    def returned(self, partial: Tensor, counts: Sequence[int]) -> Tensor:
        """Return it."""
        return partial

    def traded(self, rows: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Return them."""
        return rows

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
        return ordered_sum(torch.stack(self._all(partial)))

    def deal(self, tokens: int, width: int) -> Deal:
        """Return that each rank mixes a share, of few tokens, too: the arithmetic is the same."""
        if self.shares.attention == "data":
            return Undealt(OneRank())
        if all_have_some(tokens, self.shares.world):
            return Dealt(self, tokens)
        return Undealt(self)

    def swapped(self, rows: Tensor, size: int) -> Tensor:
        """Return what others have of this rank's rows; see `Moves`."""
        first = size * self.shares.rank
        return torch.stack([every[first : first + size] for every in self._all(rows)])

    def stacked(self, rows: Tensor) -> Tensor:
        """Return all rows; see `Moves`."""
        return torch.cat(self._all(rows))

    def gathered(self, part: Tensor) -> Tensor:
        """Return all parts; see `Ranks`."""
        return torch.cat(self._all(part), 1)

    def collected(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return all rows; see `Ranks`. They are sent as if all ranks had as many."""
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = zip(self._all(padded), counts, strict=True)
        return torch.cat([part[:count] for part, count in parts])

    def returned(self, partial: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the sums of this rank's rows; see `Ranks`."""
        first = sum(counts[: self.shares.rank])
        mine = slice(first, first + counts[self.shares.rank])
        return ordered_sum(torch.stack([every[mine] for every in self._all(partial)]))

    def traded(self, rows: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Return what others have for this rank; see `Ranks`."""
        parts = rows.new_empty((sum(taken), *rows.shape[1:]))
        dist.all_to_all_single(parts, rows.contiguous(), [*taken], [*given])
        return parts

    def least(self, value: int) -> int:
        """Return the least; see `Ranks`."""
        return int(torch.stack(self._all(torch.tensor(value))).min())

    def _all(self, part: Tensor) -> list[Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.shares.world)]
        dist.all_gather(parts, part)
        return parts
