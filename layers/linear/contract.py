"""What blocks ask of a linear layer, whatever its weights are kept as.

Several named weights may be stacked into one product, and several products may take the same rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from layers.blocks.norm import RmsNorm
from layers.weights.part import Part
from layers.weights.stacked import StackedWeight
from layers.weights.weight_target import WeightTarget

__all__ = ["GroupedLinear", "Linear", "Named", "Rows"]

Named = Iterator[tuple[str, Tensor | WeightTarget | StackedWeight | Part]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that products take.

    x        [T, width] float32 or bfloat16
    norm     [width] float32, the weight of a norm that comes first; None: there is none
    eps      of the norm
    rounded  codes and scales of all of it, where a kind of product shares them
    """

    x: Tensor
    norm: Tensor | None = None
    eps: float = 0.0
    rounded: tuple[Tensor, Tensor] | None = None


class Linear(Protocol):
    """One matrix product without bias, of one or more named weights."""

    def rows(self, x: Tensor, norm: RmsNorm | None = None) -> Rows:
        """Return `x` [T, width], normed if there is a norm, as products of this kind take it."""
        ...

    def gated(self, hidden: Tensor, limit: float) -> Rows:
        """Return clamped SwiGLU of `hidden` [T, 2 * width] as products of this kind take it."""
        ...

    def __call__(self, rows: Rows) -> Tensor:
        """Return the product, [T, sum of output rows], in the dtype that this kind sums to."""
        ...

    def named_weights(self, prefix: str) -> Named:
        """Yield `prefix + name + ".weight"` and where it goes, for each part."""
        ...


class GroupedLinear(Protocol):
    """One product for each group of heads."""

    def __call__(self, heads: Tensor, rotation: Tensor) -> Tensor:
        """Turn heads back and multiply: [T, H, D] -> [T, groups * rows]. `heads` may be changed.

        rotation  [T, 2, R] float32
        """
        ...

    def named_weights(self, prefix: str) -> Named:
        """Yield the weight under its name in files."""
        ...
