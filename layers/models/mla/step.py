"""Steps of chunks and of decoding rows: where tokens write their records, and what they read."""

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from jit_kernels.latent_attention import latent_attention
from jit_kernels.latent_heads import LatentWeights, absorbed_heads, latent_values
from jit_kernels.latent_queries import latent_queries
from jit_kernels.paged_latent import LatentPlan, paged_latent
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope import rope
from jit_kernels.rope_halves import rope_halves
from jit_kernels.tile_linear import tile_linear_grouped
from layers.blocks.rope import HalfRope, PairRope
from layers.models.mla.pools import LatentPools
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_places import PagePlaces
from layers.steps.page_slots import PageSlots

__all__ = [
    "Bf16Step",
    "DenseStep",
    "HeadStep",
    "LatentStep",
    "PlacedStep",
    "TurnedStep",
    "turn_channels",
]


class HeadStep(Protocol):
    """What attention over latents asks of a step of T tokens."""

    def heads(self, layer: int, q: Tensor, made: Tensor, weights: LatentWeights) -> Tensor:
        """Write what the tokens leave in a layer, and return what queries multiply records with.

        q     [T, H, plain + turned] float32, may be changed
        made  [T, C] float32   records, not yet normed or turned

        Returns [T, H, C].
        """
        ...

    def values(self, read: Tensor, values: Tensor) -> Tensor:
        """Return the values [T, H value] of sums of latents, [T, H, latent].

        values  [H, value, latent]
        """
        ...


class DenseStep(HeadStep, Protocol):
    """One whose tokens attend all positions up to their own."""

    def attend(self, layer: int, q: Tensor, *, scale: float) -> Tensor:
        """Return what tokens read with the queries of `heads`, [T, H, latent]."""
        ...


def turn_channels(part: Tensor, rotation: Tensor, *, halves: bool) -> None:
    """Turn some channels of heads, [T, H, R] float32, a view of their memory, in place.

    rotation  of the tokens, as `rope_halves` or `rope` takes it
    """
    own = part.clone(memory_format=torch.contiguous_format)
    part.copy_(rope_halves(own, rotation) if halves else rope(own, rotation))


class TurnedStep(ABC):
    """A step in plain numbers; what layers share is derived once: positions, slots, rotations."""

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

    def heads(self, layer: int, q: Tensor, made: Tensor, weights: LatentWeights) -> Tensor:
        """Write records and absorb keys, in float32; see `HeadStep`."""
        _, depth, latent = weights.keys.shape
        plain, turned = made.split([latent, self._turned], 1)
        records = torch.cat((rms_norm(plain, weights.norm, eps=weights.eps), turned), 1)
        self.write(layer, self._turn(records.unsqueeze(1)).squeeze(1))
        plain, turned = self._turn(q.contiguous()).split([depth, self._turned], 2)
        return torch.cat((latent_queries(plain, weights.keys), turned), 2)

    @abstractmethod
    def write(self, layer: int, records: Tensor) -> None:
        """Write what the tokens leave in a layer, [T, C] float32, turned."""

    def values(self, read: Tensor, values: Tensor) -> Tensor:
        """Make values, in float32; see `HeadStep`."""
        return tile_linear_grouped(read, values)

    def _turn(self, x: Tensor) -> Tensor:
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

    def write(self, layer: int, records: Tensor) -> None:
        """Write what the tokens leave in a layer; see `TurnedStep`."""
        self._slots.store(self._pools.records[layer], records)

    def attend(self, layer: int, q: Tensor, *, scale: float) -> Tensor:
        """Attend; see `DenseStep`."""
        records = self._pools.records[layer]
        latent = records.shape[2] - self._turned
        return latent_attention(q, records, self._slots.rows, values=latent, scale=scale)


class PlacedStep:
    """A step of chunks or of decoding rows on a GPU; queries are bfloat16."""

    def __init__(
        self, places: PagePlaces, records: Tensor, turn: PairRope, *, deterministic: bool
    ) -> None:
        """Derive what the layers share.

        records        [L, U, P, ...], of all layers, as `absorbed_heads` writes them
        turn           how the last channels of heads and records turn
        deterministic  what a token reads has the same bits in any company and chunk
        """
        self.places, self._records, self._deterministic = places, records, deterministic
        self._halves = isinstance(turn, HalfRope)
        self._rotation = turn.rotation(places.position)

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        return self.places.input_ids

    @property
    def logit_tokens(self) -> Tensor:
        """Return which of the tokens logits are wanted of, [k] int64."""
        return self.places.logit_tokens

    def heads(self, layer: int, q: Tensor, made: Tensor, weights: LatentWeights) -> Tensor:
        """Write records and absorb keys; see `HeadStep`."""
        return absorbed_heads(
            q,
            made,
            weights,
            self._rotation,
            self._records[layer],
            self.places.slots,
            halves=self._halves,
            invariant=self._deterministic,
        )

    def values(self, read: Tensor, values: Tensor) -> Tensor:
        """Make values; see `HeadStep`."""
        return latent_values(read, values, invariant=self._deterministic)

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        return self.places.finite_rows(x)


class Bf16Step(PlacedStep):
    """One over bfloat16 pages, whose tokens attend all positions up to their own."""

    def __init__(
        self, places: PagePlaces, pools: LatentPools, turn: PairRope, *, deterministic: bool
    ) -> None:
        """Derive what the layers share; see `PlacedStep`."""
        super().__init__(places, pools.records, turn, deterministic=deterministic)
        self._plan = LatentPlan()

    def attend(self, layer: int, q: Tensor, *, scale: float) -> Tensor:
        """Attend; see `DenseStep`."""
        turned = self._rotation.shape[2] * (2 if self._halves else 1)
        return paged_latent(
            q,
            self._records[layer],
            self.places.rows,
            values=q.shape[2] - turned,
            scale=scale,
            plan=self._plan,
            invariant=self._deterministic,
        )
