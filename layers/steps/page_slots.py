"""Where the tokens of a step write into pages, and which pages they read: no windows, no state."""

import torch
from torch import Tensor

from jit_kernels.grouped_attention import ChunkRows
from layers.steps.forward_batch import ForwardBatch, finite_rows
from layers.steps.step_tokens import StepTokens

__all__ = ["PageSlots"]


class PageSlots:
    """Derived once a step, for all layers.

    Tokens are written to pages before any is read, so that a token reads the same numbers whether
    they were computed in this step or earlier.

    position  [T] int64
    slots     [T] int64   page * page_size + place; 0 for what pages hold already
    rows      what attention over pages takes
    """

    def __init__(self, batch: ForwardBatch, page_size: int) -> None:
        self._batch, tokens = batch, StepTokens(batch)
        self.position = tokens.position
        page = batch.page_table[tokens.row, tokens.position // page_size].long()
        slots = page * page_size + tokens.position % page_size
        # What pages hold already is not written again; page 0 takes it.
        self.slots = torch.where(tokens.writes_records, slots, 0)
        self.rows = ChunkRows(
            page_table=batch.page_table.contiguous(),
            start=batch.chunk_start,
            count=batch.chunk_len,
            row=tokens.row.contiguous(),
            position=tokens.position,
        )

    def store(self, pages: Tensor, rows: Tensor) -> None:
        """Write what the tokens leave in a layer, in place.

        pages  [U, page_size, ...]
        rows   [T, ...], rounded to the dtype of pages
        """
        pages.flatten(0, 1).index_copy_(0, self.slots, rows.to(pages.dtype))

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        return finite_rows(x.isfinite().all(1), self.rows.row, self._batch.chunk_len)
