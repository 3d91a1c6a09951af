"""Token embedding and the head that turns the last hidden state into logits."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.embed_streams import embed_streams
from jit_kernels.tile_linear import tile_linear
from layers.blocks.hyper_connection import BlockResult

__all__ = ["VocabTable"]


class VocabTable:
    """A row per token id: looked up as an embedding, multiplied as a head.

    weight  [vocab, width]
    """

    def __init__(
        self, vocab: int, width: int, *, name: str, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate the table, called `name` in files."""
        self._name = name
        self.weight = torch.zeros((vocab, width), dtype=dtype, device=device)

    def embed(self, token_ids: Tensor, *, streams: int) -> BlockResult:
        """Return the rows of `token_ids` [T] int64 as what every stream begins with."""
        rows, shares = embed_streams(token_ids, self.weight, streams=streams)
        return BlockResult(rows, rows.unsqueeze(1).expand(-1, streams, -1), shares)

    def logits(self, x: Tensor) -> Tensor:
        """Return [R, vocab] float32 logits of `x` [R, width]."""
        return tile_linear(x, self.weight, out_dtype=torch.float32)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the table under its name in files."""
        yield f"{self._name}.weight", self.weight
