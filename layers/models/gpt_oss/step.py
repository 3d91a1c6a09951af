"""A step of chunks in plain numbers: where its tokens write keys and values, what they read.

Layers that attend everything write to full pages and read from them. Layers with a window read

    [ n * window positions before the chunks | T positions of the chunks ]

and write what the step saves to SWA pages afterwards.
"""

from typing import Protocol

import torch
from torch import Tensor

from jit_kernels.grouped_attention import ChunkRows, grouped_attention
from jit_kernels.rope_halves import rope_halves
from layers.blocks.rope import HalfRope
from layers.models.gpt_oss.pools import WindowPools
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_slots import PageSlots
from layers.steps.step_tokens import StepTokens
from layers.steps.window_places import ring_slots, window_saves
from mem_cache.spec import TreeSpec

__all__ = ["SinkStep", "WindowStep"]

# Tiles of keys begin at the same positions in every chunk: so sums of the reference have one order.
_TILE = 64


class SinkStep(Protocol):
    """What attention with sinks asks of a step of T tokens."""

    def read(self, layer: int, made: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        """Write what the tokens leave in a layer, and return what they read, [T, H, D].

        made   [T, (H + 2 KH) D] float32   heads of queries, then of keys, then of values; may be
               changed
        bias   [(H + 2 KH) D] float32, added to each token's
        sinks  [H] in the step's dtype, one more logit a head
        """
        ...


class WindowStep:
    """What the layers of one step share, derived once; a `SinkStep`."""

    def __init__(
        self,
        batch: ForwardBatch,
        pools: WindowPools,
        tree: TreeSpec,
        ropes: tuple[HalfRope, HalfRope],
    ) -> None:
        """Derive it.

        tree   units of the windows
        ropes  of layers that attend everything, and of those with a window
        """
        self.input_ids, self.logit_tokens = batch.input_ids, batch.logit_tokens
        self._pools, self._sliding, self._nth = pools, pools.layout.sliding, pools.layout.nth
        self._slots = PageSlots(batch, pools.keys.shape[2])
        full, sliding = ropes
        turned = full.rotation(self._slots.position)
        others = turned if sliding is full else sliding.rotation(self._slots.position)
        self._rotations = (turned, others)
        if not tree.window:
            return
        tokens = StepTokens(batch, draft_tokens=tree.draft_tokens)
        self._read = _window_slots(tokens, tree)
        self._rows = _window_rows(tokens, pools.layout.before, held=tree.window)
        self._saves = window_saves(tokens, tree)

    def rotation(self, layer: int) -> Tensor:
        """Return what turns queries and keys of a layer, [T, 2, D / 2] float32."""
        return self._rotations[self._sliding[layer]]

    def read(self, layer: int, made: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        """Write and attend; see `SinkStep`."""
        groups, width = self._pools.keys.shape[3:]
        every = (made + bias).unflatten(1, (-1, width))
        q, keys, values = every.split([every.shape[1] - 2 * groups, groups, groups], 1)
        rope_halves(every[:, : q.shape[1] + groups], self.rotation(layer))
        return self.attend(layer, q, keys, values, scale=width**-0.5, sinks=sinks)

    def attend(
        self,
        layer: int,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        scale: float,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Write what the tokens leave in a layer, and return what they read, [T, H, D] float32.

        q       [T, H, D] float32, turned
        keys    [T, KH, D] float32, turned
        values  [T, KH, D] float32
        scale   of products of queries and keys
        sinks   [H] float32, one more logit a head; None: there is none
        """
        pools, nth = self._pools, self._nth[layer]
        if not self._sliding[layer]:
            both = (pools.keys[nth], pools.values[nth])
            for pages, made in zip(both, (keys, values), strict=True):
                self._slots.store(pages, made)
            return grouped_attention(q, *both, self._slots.rows, scale=scale, sinks=sinks)
        places = [pool[nth].flatten(0, 1) for pool in (pools.swa_keys, pools.swa_values)]
        seen = [
            torch.cat((place.index_select(0, self._read), made.to(place.dtype)))
            for place, made in zip(places, (keys, values), strict=True)
        ]
        read = [x.unsqueeze(1) for x in seen]
        out = grouped_attention(q, read[0], read[1], self._rows, scale=scale, sinks=sinks)
        for place, x in zip(places, seen, strict=True):
            place.index_copy_(0, self._saves.target, x.index_select(0, self._saves.source))
        return out

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        return self._slots.finite_rows(x)


def _window_slots(tokens: StepTokens, tree: TreeSpec) -> Tensor:
    """Return where the positions before the chunks lie, [n * tree.window] int64; 0: nowhere."""
    position, readable = tokens.before(tree.window)
    slots = ring_slots(tokens.batch.window, position, tree)
    return slots.masked_fill_(~readable, 0).flatten()


def _window_rows(tokens: StepTokens, before: int, *, held: int) -> ChunkRows:
    """Return the rows as attention over pages of one position takes them.

    Position p of a row is there p - origin, so that its table begins shortly before its window.
    before  positions that a token attends before its own
    held    positions before the chunk that there are
    """
    batch = tokens.batch
    start, row = batch.chunk_start, tokens.row
    origin = (start - before) // _TILE * _TILE
    columns = _TILE + before + int(batch.chunk_len.max())
    position = origin.unsqueeze(1) + torch.arange(columns, device=tokens.device)
    # Entries of a row's window, then of the chunks; what lies before or behind is not read.
    back = position - start.unsqueeze(1)
    old = back + held + torch.arange(tokens.rows, device=tokens.device).unsqueeze(1) * held
    new = position + tokens.shift.unsqueeze(1) + tokens.rows * held
    entry = torch.where(back < 0, old, new)
    entry.masked_fill_((back < -before) | (back >= batch.chunk_len.unsqueeze(1)), 0)
    lowest = batch.window_from.index_select(0, row).clamp(min=0)
    own = origin.index_select(0, row)
    return ChunkRows(
        page_table=entry.to(torch.int32),
        start=start - origin,
        count=batch.chunk_len,
        row=row.contiguous(),
        position=tokens.position - own,
        since=torch.maximum(tokens.position - before, lowest) - own,
    )
