"""Token embedding."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.embed_streams import embed_streams
from layers.blocks.hyper_connection import BlockResult

__all__ = ["Embedding"]


class Embedding:
    """A row per token id.

    weight  [vocab, width]
    """

    def __init__(
        self, vocab: int, width: int, *, name: str, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate the table, called `name` in files."""
        self._name = name
        self.weight = torch.zeros((vocab, width), dtype=dtype, device=device)

    def streams(self, token_ids: Tensor, count: int) -> BlockResult:
        """Return the rows of `token_ids` [T] int64 as what each of `count` streams begins with."""
        rows, shares = embed_streams(token_ids, self.weight, streams=count)
        return BlockResult(rows, rows.unsqueeze(1).expand(-1, count, -1), shares)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the table under its name in files."""
        yield f"{self._name}.weight", self.weight
