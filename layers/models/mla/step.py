"""A step of chunks: where its tokens write their records, and what they read."""

import torch
from torch import Tensor

from jit_kernels.latent_attention import latent_attention
from jit_kernels.rope import rope
from jit_kernels.rope_halves import rope_halves
from layers.blocks.rope import HalfRope, PairRope
from layers.models.mla.pools import LatentPools
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_slots import PageSlots

__all__ = ["LatentStep", "TurnedStep", "turn_channels"]


def turn_channels(part: Tensor, rotation: Tensor, *, halves: bool) -> None:
    """Turn some channels of heads, [T, H, R] float32, a view of their memory, in place.

    rotation  of the tokens, as `rope_halves` or `rope` takes it
    """
    own = part.clone(memory_format=torch.contiguous_format)
    part.copy_(rope_halves(own, rotation) if halves else rope(own, rotation))


class TurnedStep:
    """What the layers of one step share, derived once: positions, slots, and rotations."""

    def __init__(self, batch: ForwardBatch, page_size: int, turn: PairRope, *, turned: int) -> None:
        """Take how the last `turned` channels of heads and records turn."""
        self._turned, self._batch = turned, batch
        self._slots = PageSlots(batch, page_size)
        self._halves = isinstance(turn, HalfRope)
        self._rotation = turn.rotation(self._slots.position)

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        return self._batch.input_ids

    @property
    def logit_tokens(self) -> Tensor:
        """Return which of the tokens logits are wanted of, [k] int64."""
        return self._batch.logit_tokens

    def turn(self, x: Tensor) -> Tensor:
        """Turn the last channels of `x` [T, H, C] float32, contiguous, in place; return it."""
        if not self._halves:
            return rope(x, self._rotation)
        turn_channels(x[..., x.shape[2] - self._turned :], self._rotation, halves=True)
        return x

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        return self._slots.finite_rows(x)


class LatentStep(TurnedStep):
    """A step whose tokens attend all positions up to their own."""

    def __init__(
        self, batch: ForwardBatch, pools: LatentPools, turn: PairRope, *, turned: int
    ) -> None:
        """Take how the last `turned` channels of heads and records turn."""
        super().__init__(batch, pools.records.shape[2], turn, turned=turned)
        self._pools = pools

    def store(self, layer: int, records: Tensor) -> None:
        """Write what the tokens leave in a layer, [T, C] float32, turned."""
        self._slots.store(self._pools.records[layer], records)

    def attend(self, layer: int, q: Tensor, *, scale: float) -> Tensor:
        """Return what tokens read, [T, H, latent] float32.

        q  [T, H, C] float32, as wide as records
        """
        records = self._pools.records[layer]
        latent = records.shape[2] - self._turned
        return latent_attention(q, records, self._slots.rows, values=latent, scale=scale)
