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

    def streams(self, token_ids: Tensor, count: int, deal: Deal) -> BlockResult:
        """Return the rows of `token_ids` [T] int64 as what each of `count` streams begins with.

        deal  which tokens this rank mixes: the result is of those
        """
        mine = token_ids
        if not self._vocab.is_whole:
            mine = (token_ids - self._vocab.first).clamp_(0, self._vocab.count - 1)
        rows, shares = embed_streams(mine, self.weight, streams=count)
        if not self._vocab.is_whole:
            others = (token_ids != mine + self._vocab.first).unsqueeze(1)
            rows, shares = deal.summed(rows.masked_fill(others, 0.0)), deal.mine(shares)
        return BlockResult(rows, rows.unsqueeze(1).expand(-1, count, -1), shares)

    def named_weights(self) -> Named:
        """Yield the table under its name in files."""
        yield f"{self._name}.weight", part_of(self.weight, self._vocab, self.weight.shape[1])
