"""What attention asks of a step, be it one of decoding rows or one of chunks.

A step knows where its tokens read and write; a layer brings projections and weights. The calls of
a layer come in the order of `FusedStep`, but that blocks may be written before the window is.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

__all__ = ["FoldWeights", "FusedStep", "PoolingWeights", "TokenInputs"]


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


class TokenInputs(Protocol):
    """What a layer is told of T tokens that it works on one by one."""

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        ...

    def rotation(self, *, compressed: bool) -> Tensor:
        """Return [T, 2, R] float32 of the layers with compression, or of those without."""
        ...


class FusedStep(TokenInputs, Protocol):
    """One step of T tokens over the pools it was made for; `layer` is the index in the model."""

    def store_window(self, layer: int, kv: Tensor, weight: Tensor) -> None:
        """Norm, rotate and store the tokens' keys, where `attend` reads them.

        kv      [T, 512] float32 or bfloat16, before norm and rotation; rows may be strided
        weight  [512] float32
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

    def choose(self, layer: int, *, next_settled: bool = False) -> None:
        """Choose among what `score` has scored; in layers that score nothing there is nothing.

        next_settled  on the device, the launch after reads neither the choice nor its scores
        """
        ...

    def attend(self, layer: int, q: Tensor, sink: Tensor) -> Tensor:
        """Return what the tokens read, before it is rotated back, [T, H, 512] bfloat16.

        The last call of a layer: what the step saves of the window may be written here.

        q     [T, H, 512] bfloat16, normed and rotated
        sink  [H] float32
        """
        ...

    def attend_quant(
        self, layer: int, q: Tensor, sink: Tensor, *, groups: int, settled: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return what `attend` does, turned back and rounded for the output projection.

        settled  on the device, the launch before makes q and nothing else that is read here

        Returns codes and scales as `out_rope_quant` does.
        """
        ...
