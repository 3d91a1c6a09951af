"""A part of a weight: what one rank keeps of what a file holds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from layers.parallel.shares import Share, Size, whole
from layers.weights.weight_target import WeightTarget

__all__ = ["Part", "part_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows and columns of a weight, and where they go.

    columns  None: the weight has one axis
    """

    target: Tensor | WeightTarget
    rows: Share
    columns: Share | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the dense shape of the whole weight, that of the file."""
        both = (self.rows,) if self.columns is None else (self.rows, self.columns)
        return tuple(share.total for share in both)

    @property
    def device(self) -> torch.device:
        """Return where the storage is."""
        return self.target.device

    @property
    def cut(self) -> tuple[slice, ...]:
        """Return the index of the part in the whole."""
        both = (self.rows,) if self.columns is None else (self.rows, self.columns)
        return tuple(share.part for share in both)


def part_of(
    target: Tensor | WeightTarget, rows: Size, columns: Size | None = None
) -> Tensor | WeightTarget | Part:
    """Return the target of a weight of which a rank keeps a share; itself if that is all."""
    shares = whole(rows), None if columns is None else whole(columns)
    if all(share is None or share.is_whole for share in shares):
        return target
    return Part(target, *shares)
