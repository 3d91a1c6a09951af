"""A step of chunks whose tokens attend the positions that an indexer chooses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from jit_kernels.indexer_keys import hadamard, quantise_queries
from jit_kernels.indexer_logits import indexer_logits
from jit_kernels.select_topk import select_topk
from jit_kernels.sparse_attention import KEY_TILE, sparse_attention
from layers.blocks.rope import HalfRope, PairRope
from layers.models.mla.sparse_pools import PAGE_KEYS, SparsePools
from layers.models.mla.step import HeadStep, TurnedStep, turn_channels
from layers.steps.forward_batch import ForwardBatch

__all__ = ["MOST_SCORES", "ChoosingStep", "Ropes", "SparseStep", "Wanted"]

# Scores that are there at once, float32: a long row's queries are taken in slices.
MOST_SCORES = 1 << 22


class Wanted(NamedTuple):
    """Queries of an indexer.

    q        [T, Hi, C] float32
    weights  [T, Hi] float32, may be negative
    """

    q: Tensor
    weights: Tensor


class ChoosingStep(HeadStep, Protocol):
    """One whose tokens attend the positions that an indexer chooses."""

    def store_keys(self, layer: int, keys: Tensor) -> None:
        """Write indexer keys [T, C] float32, not yet turned; they may be changed."""
        ...

    def attend(self, layer: int, q: Tensor, wanted: Wanted, *, scale: float) -> Tensor:
        """Return what tokens read with the queries of `heads`, [T, H, latent].

        wanted  not yet turned; may be changed
        """
        ...


class Ropes(NamedTuple):
    """How channels turn: the last ones of heads and records, the first ones of the indexer's."""

    heads: PairRope
    indexer: PairRope


@dataclass(frozen=True, slots=True)
class _Row:
    """A row's tokens [first, last) of the step, and where its positions lie.

    start  position of the first token
    slots  [B] int64   of its positions, whole pages of them
    """

    first: int
    last: int
    start: int
    slots: Tensor


class SparseStep(TurnedStep):
    """What the layers of one step share, derived once.

    Records and keys are written before any is read, and read in the form in which they are kept.
    What a token chooses, and the order in which it reads that, depend on the scores of its own
    positions alone.
    """

    def __init__(
        self, batch: ForwardBatch, pools: SparsePools, ropes: Ropes, *, chosen: int
    ) -> None:
        """Take how many positions a token attends."""
        page = pools.page
        super().__init__(batch, page.tokens, ropes.heads, turned=page.turned)
        self._pools, self._chosen = pools, chosen
        self._packed = page.record_format == "fp8"
        self._index_halves = isinstance(ropes.indexer, HalfRope)
        self._index_rotation = ropes.indexer.rotation(self._slots.position)
        self._rows = list(_rows(batch, page.tokens))

    def write(self, layer: int, records: Tensor) -> None:
        """Write what the tokens leave in a layer; see `TurnedStep`."""
        self._pools.store_records(layer, self._slots.slots, records)

    def store_keys(self, layer: int, keys: Tensor) -> None:
        """Turn indexer keys [T, C] float32 in place, and write them."""
        self._turn_index(keys.unsqueeze(1))
        keys = hadamard(keys) if self._packed else keys
        self._pools.store_keys(layer, self._slots.slots, keys)

    def attend(self, layer: int, q: Tensor, wanted: Wanted, *, scale: float) -> Tensor:
        """Return what tokens read, [T, H, latent] float32.

        q       [T, H, C] float32, as wide as records
        wanted  not yet turned; turned in place
        """
        self._turn_index(wanted.q)
        if self._packed:
            codes, scales = quantise_queries(hadamard(wanted.q))
            wanted = Wanted(codes, wanted.weights * scales)
        latent = q.shape[2] - self._turned
        out = q.new_empty((*q.shape[:2], latent))
        for row in self._rows:
            for tokens, chosen in self._choices(layer, row, wanted):
                read = self._read(layer, q[tokens], row.slots, chosen, scale)
                out[tokens] = read[..., :latent]
        return out

    def _turn_index(self, x: Tensor) -> None:
        part = x[..., : self._turned]
        turn_channels(part, self._index_rotation, halves=self._index_halves)

    def _choices(self, layer: int, row: _Row, wanted: Wanted) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of a row's tokens, and the positions of each, [S, K] int64.

        Positions ascend; -1 behind them stands for none.
        """
        keys = torch.empty(0)
        size = max(1, MOST_SCORES // len(row.slots))
        for first in range(row.first, row.last, size):
            tokens = slice(first, min(row.last, first + size))
            visible = self._slots.position[tokens] + 1
            most = row.start + tokens.stop - row.first
            if most <= self._chosen:
                every = torch.arange(most, device=visible.device).expand(len(visible), most)
                yield tokens, every.masked_fill(every >= visible.unsqueeze(1), -1)
                continue
            if not len(keys):
                keys = self._pools.read_keys(layer, row.slots)
            scores = indexer_logits(
                wanted.q[tokens],
                wanted.weights[tokens],
                keys[: -(-most // PAGE_KEYS) * PAGE_KEYS].unsqueeze(0),
                row=torch.zeros_like(visible),
                visible=visible,
            )
            yield tokens, select_topk(scores, visible, top_k=self._chosen)

    def _read(self, layer: int, q: Tensor, slots: Tensor, chosen: Tensor, scale: float) -> Tensor:
        """Return what tokens [S, H, C] read of the positions chosen, [S, H, C] float32.

        Each record that any token names is read from its page once.
        """
        named = torch.zeros(len(slots) + 1, dtype=torch.bool, device=q.device)
        named[chosen + 1] = True
        named[0] = False
        place = named.cumsum(0)
        records = self._pools.read_records(layer, slots[named[1:]])
        index = F.pad(place[chosen + 1], (0, -chosen.shape[1] % KEY_TILE))
        none = q.new_full((q.shape[1],), -torch.inf)
        return sparse_attention(q, F.pad(records, (0, 0, 1, 0)), index, sink=none, scale=scale)


def _rows(batch: ForwardBatch, page_size: int) -> Iterator[_Row]:
    """Yield the rows of a step that have tokens."""
    first = 0
    inside = torch.arange(page_size, device=batch.page_table.device)
    starts, counts = batch.chunk_start.tolist(), batch.chunk_len.tolist()
    for start, count, table in zip(starts, counts, batch.page_table, strict=True):
        if count:
            pages = table[: -(-(start + count) // page_size)].long()
            slots = (pages.unsqueeze(1) * page_size + inside).flatten()
            yield _Row(first, first + count, start, slots)
        first += count
