"""What attention asks of a step: the reference, decoding rows, or chunks.

A step knows where its tokens read and write; a layer brings projections and weights. The calls of
a layer come in the order of `Step`, but that blocks may be written before the window is.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

__all__ = ["ChunkStep", "FoldWeights", "PoolingWeights", "Step", "StepSizes", "Tokens", "Writes"]


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Numbers of a model that steps need beside the shapes of its pools.

    top_k  blocks of 4 that a token attends at most
    eps    epsilon of all norms
    """

    top_k: int
    eps: float


@dataclass(frozen=True, slots=True)
class PoolingWeights:
    """Weights of a layer that compresses by 4, beside its projection. All float32.

    ape         [4, 4 D + 4 C]   added to the gates by position % 4; its kv columns are zeros
    norm        [D]   of the records
    index_norm  [C]   of the indexer keys
    """

    ape: Tensor
    norm: Tensor
    index_norm: Tensor


@dataclass(frozen=True, slots=True)
class FoldWeights:
    """Weights of a layer that compresses by 128, beside its projection. All float32.

    ape   [128, 2 D]   added to the gates by position % 128; its kv columns are zeros
    norm  [D]   of the records
    """

    ape: Tensor
    norm: Tensor


class Tokens(Protocol):
    """T tokens that a layer works on one by one."""

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        ...

    def rotation(self, *, compressed: bool) -> Tensor:
        """Return [T, 2, R] float32 of the layers with compression, or of those without."""
        ...


class Writes(Tokens, Protocol):
    """The part of a step before attention; `layer` is the index in the model."""

    def store_window(self, layer: int, kv: Tensor, weight: Tensor) -> None:
        """Norm, rotate and store the tokens' keys, where `attend` reads them.

        kv      [T, D] float32 or bfloat16, before norm and rotation; rows may be strided
        weight  [D] float32
        """
        ...

    def pool(self, layer: int, rows: Tensor, weights: PoolingWeights) -> None:
        """Advance a layer that compresses by 4: blocks, their indexer keys, state rows.

        rows  [T, 4 D + 4 C] float32, of `StateLayout`'s columns; rows may be strided
        """
        ...

    def fold(self, layer: int, rows: Tensor, weights: FoldWeights) -> None:
        """Advance a layer that compresses by 128: blocks, banks.

        rows  [T, 2 D] float32, kv, then gate; rows may be strided
        """
        ...

    def score(self, layer: int, q: Tensor, weights: Tensor) -> None:
        """Score the blocks of 4 that `attend` may read in this layer; after `pool`.

        q        [T, Hi, C] float32 or bfloat16, before rotation; tokens may be strided
        weights  [T, Hi] float32 or bfloat16 of the heads; tokens may be strided
        """
        ...

    def choose(self, layer: int) -> None:
        """Choose among what `score` has scored; in layers that score nothing there is nothing."""
        ...


class Step(Writes, Protocol):
    """One step of T tokens over the pools that it was made for."""

    def attend(self, layer: int, q: Tensor, sink: Tensor) -> Tensor:
        """Return what the tokens read, before it is rotated back, [T, H, D] in the dtype of q.

        The last call of a layer: what the step saves of the window may be written here.

        q     [T, H, D], normed and rotated
        sink  [H] float32
        """
        ...


class ChunkStep(Step, Protocol):
    """A step of chunks of several rows, which asks for logits of some of its tokens."""

    @property
    def logit_tokens(self) -> Tensor:
        """Return which of the tokens logits are wanted of, [k] int64."""
        ...

    def finite_rows(self, tokens: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool.

        tokens  [T] bool   finite or not
        """
        ...
