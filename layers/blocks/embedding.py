"""Token embedding."""

import torch
from torch import Tensor

from jit_kernels.embed_streams import embed_streams
from layers.blocks.hyper_connection import BlockResult
from layers.linear.contract import Named
from layers.parallel.ranks import Deal
from layers.parallel.shares import Share
from layers.weights.part import part_of

__all__ = ["Embedding"]


class Embedding:
    """A row per token id, of which this rank holds a share.

    weight  [rows, width]
    """

    def __init__(
        self,
        vocab: Share,
        width: int,
        *,
        name: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate the table, called `name` in files."""
        self._name, self._vocab = name, vocab
        self.weight = torch.zeros((vocab.count, width), dtype=dtype, device=device)

    def __call__(self, token_ids: Tensor, deal: Deal) -> Tensor:
        """Return the rows of `token_ids` [T] int64, of those that `deal` gives this rank."""
        return self._whole(self.weight.index_select(0, self._mine(token_ids)), token_ids, deal)

    def streams(self, token_ids: Tensor, count: int, deal: Deal) -> BlockResult:
        """Return the rows of `token_ids` [T] int64 as what each of `count` streams begins with.

        deal  which tokens this rank mixes: the result is of those
        """
        rows, shares = embed_streams(self._mine(token_ids), self.weight, streams=count)
        rows, shares = self._whole(rows, token_ids, deal), deal.mine(shares)
        return BlockResult(rows, rows.unsqueeze(1).expand(-1, count, -1), shares)

    def named_weights(self) -> Named:
        """Yield the table under its name in files."""
        yield f"{self._name}.weight", part_of(self.weight, self._vocab, self.weight.shape[1])

    def _mine(self, token_ids: Tensor) -> Tensor:
        """Return the rows of this rank that stand for tokens; any row for tokens of others."""
        if self._vocab.is_whole:
            return token_ids
        return (token_ids - self._vocab.first).clamp_(0, self._vocab.count - 1)

    def _whole(self, rows: Tensor, token_ids: Tensor, deal: Deal) -> Tensor:
        """Return the rows that all ranks have of this rank's tokens."""
        if self._vocab.is_whole:
            return deal.mine(rows)
        others = (token_ids != self._mine(token_ids) + self._vocab.first).unsqueeze(1)
        return deal.summed(rows.masked_fill(others, 0.0))
