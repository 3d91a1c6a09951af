"""The tokens of one step, laid out flat: where each stands, and what a save must copy."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from layers.steps.forward_batch import ForwardBatch

__all__ = ["SaveList", "StepTokens"]


@dataclass(frozen=True, slots=True)
class SaveList:
    """Copies that put a stretch of recent positions where a save wants it.

    source  [s] int64 into [n * span entries before the chunks; T entries of the chunks]
    target  [s] int64 slots to write
    """

    source: Tensor
    target: Tensor


class StepTokens:
    """Row, position and index of every token of a batch; shared by all parts of the plan."""

    def __init__(self, batch: ForwardBatch, *, draft_tokens: int = 0) -> None:
        """Lay the chunks of `batch` end to end.

        draft_tokens  a chunk of at most one token more may lose all but its first, once it is known
                      which of them are accepted
        """
        self.batch, self._draft_tokens = batch, draft_tokens
        self.rows = batch.chunk_start.shape[0]
        self.count = batch.input_ids.shape[0]
        self.device = batch.input_ids.device
        lengths = batch.chunk_len
        row = torch.arange(self.rows, device=self.device)
        self.row = row.repeat_interleave(lengths, output_size=self.count)
        # Token index minus position, per row: adding it to a position of the chunk gives the token.
        self.shift = lengths.cumsum(0) - lengths - batch.chunk_start
        self.index = torch.arange(self.count, device=self.device)
        self.position = self.index - self.shift.index_select(0, self.row)

    @cached_property
    def writes_records(self) -> Tensor:
        """[T] bool: a block whose last token this is must be written."""
        return self.position >= self.batch.write_from.index_select(0, self.row)

    def finishing(self, ratio: int) -> Tensor:
        """Return the indices of tokens that finish a block of `ratio` that must be written."""
        last = self.position % ratio == ratio - 1
        return (last & self.writes_records).nonzero()[:, 0]

    def page_slots(self, tokens: Tensor, ratio: int, page_size: int) -> Tensor:
        """Return the full-page slots of the blocks of `ratio` that hold these tokens."""
        position, per_page = self.position[tokens], page_size // ratio
        page = self.batch.page_table[self.row[tokens], position // page_size].to(torch.int64)
        return page * per_page + position % page_size // ratio

    def before(self, span: int) -> tuple[Tensor, Tensor]:
        """Return the `span` positions before each chunk, [n, span], and which may be read."""
        start = self.batch.chunk_start.unsqueeze(1)
        position = start + torch.arange(-span, 0, device=self.device)
        return position, position >= self.batch.window_from.unsqueeze(1)

    def saved(self, span: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return (save, row, position), each [s]: the `span` positions before every save.

        Of a chunk that may lose tokens they are those before each position where it may end.
        Positions that were never computed for this row are left out.
        """
        batch, row = self.batch, self.batch.save_row
        offsets = torch.arange(-span - self._draft_tokens, 0, device=self.device)
        position = batch.save_position.unsqueeze(1) + offsets
        shortest = batch.chunk_start.index_select(0, row) + 1
        may_lose = batch.chunk_len.index_select(0, row) <= self._draft_tokens + 1
        first = torch.where(may_lose, shortest, batch.save_position) - span
        first = torch.maximum(first, batch.window_from.index_select(0, row))
        save, column = (position >= first.unsqueeze(1)).nonzero(as_tuple=True)
        return save, row.index_select(0, save), position[save, column]

    def save_list(
        self,
        row: Tensor,
        position: Tensor,
        *,
        span: int,
        kept: Tensor,
        target: Tensor,
        held: Tensor,
    ) -> SaveList:
        """Return the copies for saved positions; `held` [s] is where each lay before the chunk.

        span  entries before each chunk in the source
        kept  [s] index among them of each position
        """
        from_chunk = position >= self.batch.chunk_start.index_select(0, row)
        chunk_source = position + self.shift.index_select(0, row) + self.rows * span
        source = torch.where(from_chunk, chunk_source, row * span + kept)
        moved = (from_chunk | (target != held)).nonzero()[:, 0]
        return SaveList(source.index_select(0, moved), target.index_select(0, moved))
