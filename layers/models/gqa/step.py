"""Steps of chunks and of decoding rows: where tokens write keys and values, what they read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from jit_kernels.gqa_heads import HeadWeights, gqa_heads
from jit_kernels.grouped_attention import grouped_attention
from jit_kernels.paged_gqa import paged_gqa
from layers.blocks.rope import HalfRope
from layers.models.gqa.pools import KeyValuePools
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_places import PagePlaces
from layers.steps.page_slots import PageSlots

__all__ = ["Bf16Step", "HeadStep", "PagedStep"]


class HeadStep(Protocol):
    """What attention asks of a step of T tokens."""

    def store(self, layer: int, made: Tensor, weights: HeadWeights) -> Tensor:
        """Write what the tokens leave in a layer, and return their queries, [T, H, D].

        made  [T, (H + 2 KH) D] float32, as `gqa_heads` takes it; may be changed
        """
        ...

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Return what tokens read with the queries of `store`, [T, H, D] in their dtype."""
        ...


class PagedStep:
    """A step of chunks in plain numbers; queries are float32."""

    def __init__(
        self, batch: ForwardBatch, pools: KeyValuePools, rope: HalfRope, windows: Sequence[int]
    ) -> None:
        """Derive what the layers share.

        windows  of each layer the tokens that it attends, a token's own among them; 0: all
        """
        self._pools, self._batch, self._windows = pools, batch, windows
        self._slots = PageSlots(batch, pools.keys.shape[2])
        position, rows = self._slots.position, self._slots.rows
        self._rotation = rope.rotation(position)
        self._rows = {
            window: replace(rows, since=(position - (window - 1)).clamp_(min=0)) if window else rows
            for window in set(windows)
        }

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        return self._batch.input_ids

    @property
    def logit_tokens(self) -> Tensor:
        """Return which of the tokens logits are wanted of, [k] int64."""
        return self._batch.logit_tokens

    def store(self, layer: int, made: Tensor, weights: HeadWeights) -> Tensor:
        """Write keys and values; see `HeadStep`."""
        pages = self._pools.keys[layer], self._pools.values[layer]
        slots = self._slots.slots
        return gqa_heads(made, self._rotation, *pages, slots, weights, out_dtype=torch.float32)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attend; see `HeadStep`."""
        keys, values = self._pools.keys[layer], self._pools.values[layer]
        rows = self._rows[self._windows[layer]]
        return grouped_attention(q, keys, values, rows, scale=q.shape[2] ** -0.5)

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        return self._slots.finite_rows(x)


class Bf16Step:
    """A step of chunks or of decoding rows over bfloat16 pages; queries are bfloat16."""

    def __init__(
        self, places: PagePlaces, pools: KeyValuePools, rope: HalfRope, *, deterministic: bool
    ) -> None:
        """Derive what the layers share.

        deterministic  what a token reads has the same bits in any company and chunk
        """
        self.places, self._pools, self._deterministic = places, pools, deterministic
        self._rotation = rope.rotation(places.position)

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        return self.places.input_ids

    @property
    def logit_tokens(self) -> Tensor:
        """Return which of the tokens logits are wanted of, [k] int64."""
        return self.places.logit_tokens

    def store(self, layer: int, made: Tensor, weights: HeadWeights) -> Tensor:
        """Write keys and values; see `HeadStep`."""
        pages = self._pools.keys[layer], self._pools.values[layer]
        slots = self.places.slots
        return gqa_heads(made, self._rotation, *pages, slots, weights, out_dtype=torch.bfloat16)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attend; see `HeadStep`."""
        return paged_gqa(
            q,
            self._pools.keys[layer],
            self._pools.values[layer],
            self.places.rows,
            scale=q.shape[2] ** -0.5,
            invariant=self._deterministic,
        )

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        return self.places.finite_rows(x)
