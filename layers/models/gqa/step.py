"""A step of chunks: where its tokens write their keys and values, and what they read."""

from torch import Tensor

from jit_kernels.grouped_attention import grouped_attention
from layers.blocks.rope import HalfRope
from layers.models.gqa.pools import KeyValuePools
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_slots import PageSlots

__all__ = ["PagedStep"]


class PagedStep:
    """What the layers of one step share, derived once.

    rotation  [T, 2, D / 2] float32
    """

    def __init__(self, batch: ForwardBatch, pools: KeyValuePools, rope: HalfRope) -> None:
        self._pools = pools
        self._slots = PageSlots(batch, pools.keys.shape[2])
        self.rotation = rope.rotation(self._slots.position)

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write what the tokens leave in a layer.

        keys    [T, KH, D] float32, turned
        values  [T, KH, D] float32
        """
        self._slots.store(self._pools.keys[layer], keys)
        self._slots.store(self._pools.values[layer], values)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Return what tokens read, [T, H, D] float32.

        q  [T, H, D] float32, turned
        """
        keys, values = self._pools.keys[layer], self._pools.values[layer]
        return grouped_attention(q, keys, values, self._slots.rows, scale=q.shape[2] ** -0.5)

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        return self._slots.finite_rows(x)
