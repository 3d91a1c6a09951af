"""A step of chunks: where its tokens write their keys and values, and what they read."""

import torch
from torch import Tensor

from jit_kernels.grouped_attention import ChunkRows, grouped_attention
from layers.blocks.rope import HalfRope
from layers.models.gqa.pools import KeyValuePools
from layers.steps.forward_batch import ForwardBatch, finite_rows
from layers.steps.step_tokens import StepTokens

__all__ = ["PagedStep"]


class PagedStep:
    """What the layers of one step share, derived once.

    Tokens are written to pages before any is read, so that a token reads the same numbers whether
    they were computed in this step or earlier.

    rotation  [T, 2, D / 2] float32
    """

    def __init__(self, batch: ForwardBatch, pools: KeyValuePools, rope: HalfRope) -> None:
        self._batch, self._pools = batch, pools
        tokens = StepTokens(batch)
        size = pools.keys.shape[2]
        page = batch.page_table[tokens.row, tokens.position // size].long()
        slots = page * size + tokens.position % size
        # What pages hold already is not written again; page 0 takes it.
        self._slots = torch.where(tokens.writes_records, slots, 0)
        self._rows = ChunkRows(
            page_table=batch.page_table.contiguous(),
            start=batch.chunk_start,
            count=batch.chunk_len,
            row=tokens.row.contiguous(),
            position=tokens.position,
        )
        self.rotation = rope.rotation(tokens.position)

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write what the tokens leave in a layer.

        keys    [T, KH, D] float32, turned
        values  [T, KH, D] float32
        """
        pools = self._pools
        for pool, rows in ((pools.keys[layer], keys), (pools.values[layer], values)):
            pool.flatten(0, 1).index_copy_(0, self._slots, rows.to(pool.dtype))

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Return what tokens read, [T, H, D] float32.

        q  [T, H, D] float32, turned
        """
        keys, values = self._pools.keys[layer], self._pools.values[layer]
        return grouped_attention(q, keys, values, self._rows, scale=q.shape[2] ** -0.5)

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        return finite_rows(x.isfinite().all(1), self._rows.row, self._batch.chunk_len)
