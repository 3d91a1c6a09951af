"""Data-parallel attention: each rank has rows of its own, and all tokens meet at the experts.

Attention of a rank's rows is computed there, by all heads, and summed nowhere. Experts are shared:
each rank computes its part of them for the tokens of all ranks, and the parts are summed where the
tokens are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from torch import Tensor

from layers.parallel.ranks import Deal, Ranks
from layers.parallel.shares import Shares

__all__ = ["ExpertTokens", "OwnRows", "RowMoves", "expert_tokens"]


class RowMoves(Protocol):
    """How ranks send each other rows of unequal number; `counts` has that of each rank."""

    @property
    def shares(self) -> Shares:
        """Return what this rank holds."""
        ...

    def collected(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return all ranks' rows, [sum of counts, ...] of each one's [t, ...]."""
        ...

    def returned(self, partial: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the sum of all ranks' `partial` [sum of counts, ...] for this rank's rows."""
        ...


class OwnRows:
    """Each rank mixes the tokens of its own rows; a `Deal`."""

    def __init__(self, moves: RowMoves, counts: Sequence[int]) -> None:
        """Take how many tokens each rank has, at least 1."""
        rank = moves.shares.rank
        self._moves, self._counts = moves, counts
        ends = [0, *accumulate(counts)]
        self._mine = slice(ends[rank], ends[rank + 1])

    def summed(self, partial: Tensor) -> Tensor:
        """Return the sum; see `Deal`."""
        return self._moves.returned(partial, self._counts)

    def mine(self, every: Tensor) -> Tensor:
        """Return the part; see `Deal`."""
        return every[self._mine]

    def every(self, mine: Tensor) -> Tensor:
        """Return all parts; see `Deal`."""
        return self._moves.collected(mine, self._counts)


@dataclass(frozen=True, slots=True)
class ExpertTokens:
    """Tokens of a step that pass the experts: those of all ranks.

    deal  which of them this rank mixes
    ids   [T] int64 all of them
    """

    deal: Deal
    ids: Tensor


def expert_tokens(
    ranks: Ranks, input_ids: Tensor, width: int, counts: Sequence[int] | None = None
) -> ExpertTokens:
    """Return the tokens that pass the experts of this rank in a step.

    input_ids  [t] int64 that attention of this rank computes
    width      channels of each that are sent
    counts     tokens of each rank, where each has its own rows; None: all have as many

    Raises ValueError where `counts` does not fit `input_ids`.
    """
    shares, count = ranks.shares, len(input_ids)
    if shares.attention == "tensor":
        return ExpertTokens(ranks.deal(count, width), input_ids)
    counts = [count] * shares.world if counts is None else counts
    if len(counts) != shares.world or counts[shares.rank] != count or min(counts) < 1:
        raise ValueError(f"{count} tokens of rank {shares.rank}, and {counts} of all ranks")
    deal = OwnRows(ranks, counts)
    return ExpertTokens(deal, deal.every(input_ids))
