"""Which positions tokens attend on a GPU: scores over packed indexer keys, the best as slots.

Nothing here waits for the device. Decoding rows are scored where their keys lie, so that a CUDA
graph can hold it; so are the tokens of chunks where a token's bits must not depend on its chunk.
Else chunks are scored over the keys of their rows side by side, which neighbours then share.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from jit_kernels.chunk_logits import chunk_logits, gather_key_pages
from jit_kernels.paged_logits import LogitsPlan, paged_logits, row_slices
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_sparse import KEY_TILE
from jit_kernels.select_topk import select_slots, select_topk
from jit_kernels.translate_blocks import translate_blocks
from layers.models.mla.sparse_pools import PAGE_KEYS
from layers.staging import stage_together
from layers.steps.equal_slices import MOST_ROWS, equal_slices
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_places import PagePlaces
from layers.steps.step_tokens import StepTokens
from mem_cache.spec import div_ceil

__all__ = ["SCORES_BYTES", "Choice", "ChunkChoice", "TokenChoice"]

# Scores that are there at once: of 8,192 tokens up to a context of 16k, of 819 at 164k.
SCORES_BYTES = 1 << 29


class Choice(ABC):
    """Chooses for the layers of a step of T tokens; what they share is derived once."""

    def __init__(self, table: Tensor, visible: Tensor, *, page_tokens: int, chosen: int) -> None:
        """Take where keys and records lie.

        table    [n, P] int32   page of each page of positions
        visible  [T] int32      positions that each token may attend
        chosen   positions that a token attends, all where there are no more
        """
        self._table, self._visible = table, visible
        self._page_tokens, self._chosen = page_tokens, chosen
        self._columns = table.shape[1] * page_tokens
        self._every: Tensor | None = None

    def slots(self, groups: Tensor, layout: PageLayout, q: Tensor, weights: Tensor) -> Tensor:
        """Return the slots of what tokens attend, [T, K] int32, K a multiple of 64.

        groups      [U, layout.page_bytes] uint8   a layer's keys, `SparsePools.key_groups`
        q, weights  as `index_queries` makes them

        A slot is page * page_tokens + place; positions ascend, -1 behind them stands for none.
        """
        if self._columns > self._chosen:
            out = self._room(self._chosen)
            self._choose(groups, layout, q, weights, out)
            return out
        if self._every is None:
            self._every = self._all()
        return self._every

    @abstractmethod
    def _choose(
        self, groups: Tensor, layout: PageLayout, q: Tensor, weights: Tensor, out: Tensor
    ) -> None:
        """Write to `out` [T, K] int32 what is chosen of more positions than are attended."""

    @abstractmethod
    def _translate(self, positions: Tensor, out: Tensor) -> None:
        """Write the slots of positions [T, k] int64, -1 behind them."""

    def _all(self) -> Tensor:
        position = torch.arange(self._columns, device=self._visible.device)
        out, visible = self._room(self._columns), self._visible.unsqueeze(1)
        positions = position.expand(len(out), self._columns)
        self._translate(positions.masked_fill(position >= visible, -1), out)
        return out

    def _room(self, columns: int) -> Tensor:
        shape = (len(self._visible), div_ceil(columns, KEY_TILE) * KEY_TILE)
        return torch.empty(shape, dtype=torch.int32, device=self._visible.device)


class TokenChoice(Choice):
    """One in which each token is a row of its own."""

    def __init__(self, places: PagePlaces, *, page_tokens: int, chosen: int) -> None:
        """Derive what the layers share."""
        rows, decodes = places.rows, places.rows.first is None
        table = rows.page_table if decodes else rows.page_table.index_select(0, places.row)
        visible = rows.length if decodes else (places.position + 1).to(torch.int32)
        super().__init__(table, visible, page_tokens=page_tokens, chosen=chosen)
        self._parts = [
            (part, _groups_of(table[part], page_tokens), LogitsPlan())
            for part in self._slices(decodes=decodes)
        ]

    def _slices(self, *, decodes: bool) -> Sequence[slice]:
        tokens = len(self._visible)
        if self._columns <= self._chosen:
            return ()
        if decodes:
            return [*row_slices(tokens, self._columns, workspace_bytes=SCORES_BYTES)]
        return equal_slices(tokens, min(MOST_ROWS, max(1, SCORES_BYTES // (4 * self._columns))))

    def _choose(
        self, groups: Tensor, layout: PageLayout, q: Tensor, weights: Tensor, out: Tensor
    ) -> None:
        """Score keys where they lie; see `Choice`."""
        for part, page_table, plan in self._parts:
            scores = paged_logits(
                q[part],
                weights[part],
                groups,
                layout,
                page_table=page_table,
                blocks=self._visible[part],
                columns=self._columns,
                plan=plan,
            )
            select_slots(
                scores,
                self._visible[part],
                self._table[part],
                out[part],
                top_k=self._chosen,
                page_blocks=self._page_tokens,
            )

    def _translate(self, positions: Tensor, out: Tensor) -> None:
        """Translate by the rows' own tables; see `Choice`."""
        translate_blocks(positions, self._table, out, page_blocks=self._page_tokens)


class ChunkChoice(Choice):
    """One in which the tokens of a chunk share its row's keys, copied side by side."""

    def __init__(
        self, batch: ForwardBatch, places: PagePlaces, *, page_tokens: int, chosen: int
    ) -> None:
        """Derive what the layers share.

        batch  in host memory, whose places these are
        """
        visible = (places.position + 1).to(torch.int32)
        super().__init__(places.rows.page_table, visible, page_tokens=page_tokens, chosen=chosen)
        self._row = places.row
        ends = batch.chunk_start + batch.chunk_len
        self._columns = int(ends.max())
        if self._columns <= chosen:
            return
        used = (ends + (PAGE_KEYS - 1)) // PAGE_KEYS
        table = _groups_of(batch.page_table, page_tokens)
        named = table[torch.arange(table.shape[1]) < used.unsqueeze(1)]
        before = (used.cumsum(0) - used) * PAGE_KEYS
        first = before.index_select(0, StepTokens(batch).row).to(torch.int32)
        arrays = {"named": named.numpy(), "first": first.numpy()}
        staged = stage_together(arrays, places.position.device)
        self._named, self._first = staged["named"], staged["first"]
        self._end = self._first + visible

    def _choose(
        self, groups: Tensor, layout: PageLayout, q: Tensor, weights: Tensor, out: Tensor
    ) -> None:
        """Copy keys, and score some tokens after others; see `Choice`."""
        keys = gather_key_pages(groups, self._named, layout)
        for part in self._slices():
            scores = chunk_logits(
                q[part],
                weights[part],
                keys,
                start=self._first[part],
                end=self._end[part],
                columns=self._columns,
            )
            best = select_topk(scores, self._visible[part], top_k=self._chosen)
            self._write(best, out[part], self._row[part])

    def _slices(self) -> Iterator[slice]:
        return row_slices(len(self._visible), self._columns, workspace_bytes=SCORES_BYTES)

    def _translate(self, positions: Tensor, out: Tensor) -> None:
        """Translate by the tables of tokens' rows; see `Choice`."""
        self._write(positions, out, self._row)

    def _write(self, positions: Tensor, out: Tensor, row: Tensor) -> None:
        translate_blocks(positions, self._table, out, page_blocks=self._page_tokens, row=row)


def _groups_of(table: Tensor, page_tokens: int) -> Tensor:
    """Return the groups of keys of pages [n, P] int32, [n, P page_tokens / PAGE_KEYS] int32."""
    each = page_tokens // PAGE_KEYS
    inside = torch.arange(each, dtype=torch.int32, device=table.device)
    return (table.unsqueeze(2) * each + inside).flatten(1)
