"""Pools that are pages alone: one lifetime, no windows, no state."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from jit_kernels.copy_units import copy_units
from layers.models.copies import apart
from layers.models.unit_views import UnitView, UnitViews
from layers.staging import stage

__all__ = ["PagePools"]


class PagePools:
    """Pages of every layer; a `Pools`."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Take tensors of [L, pages + 1, page_size, ...]; page 0 is the dummy of padding."""
        self._tensors = dict(tensors)

    @property
    def bytes(self) -> int:
        """Bytes of all of it, the dummy included."""
        return sum(pool.nbytes for pool in self._tensors.values())

    def tensors(self) -> Mapping[str, Tensor]:
        """Return all of it by name."""
        return self._tensors

    def copy_full_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy pages (source, destination) in every layer, one after the other."""
        for some in apart(pairs):
            for pool in self._tensors.values():
                staged = stage(np.array(some, dtype=np.int64).T, pool.device)
                copy_units(pool.flatten(2).view(torch.uint8), staged)

    def copy_swa_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy nothing: there are no windows."""

    def copy_states(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy nothing: there is no state."""

    def unit_views(self) -> UnitViews:
        """Return all pages as bytes."""
        return UnitViews([UnitView.of(pool) for pool in self._tensors.values()])
