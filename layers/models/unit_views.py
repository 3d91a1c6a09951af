"""Whole units of pools as bytes: what is copied between pools that have the same layout.

    read_units(source)  ->  bytes  ->  write_units(target)

What carries the bytes is somebody else's business: see `layers.parallel.transfer`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from layers.staging import stage
from mem_cache.transfer import UnitIds

__all__ = ["UnitView", "UnitViews", "read_units", "unit_bytes", "write_units"]

# Bytes that are moved as one number, where units are divisible by it.
_WORD = 8


@dataclass(frozen=True, slots=True)
class UnitView:
    """Where one tensor has the units of a pool.

    bytes  [L, blocks, units of a block, n] uint8, a view of the tensor: n bytes of each layer
    first  the unit that lies at the beginning
    """

    bytes: Tensor
    first: int = 0

    @classmethod
    def of(cls, pool: Tensor) -> "UnitView":
        """Return the view of a contiguous tensor [L, units, ...]."""
        return cls(pool.flatten(2).view(torch.uint8).unsqueeze(2))

    @property
    def each(self) -> int:
        """Bytes of one unit in all layers."""
        return self.bytes.shape[0] * self.bytes.shape[3]

    def read(self, units: Sequence[int]) -> Tensor:
        """Return what units hold, [L * k * n] uint8."""
        block, nth = self._places(units)
        return self._words[:, block, nth].reshape(-1).view(torch.uint8)

    def write(self, units: Sequence[int], data: Tensor) -> None:
        """Write what `read` returned of as many units. No unit is named twice."""
        block, nth = self._places(units)
        words = self._words
        if data.storage_offset() % words.itemsize:
            data = data.clone()
        shape = (words.shape[0], len(units), words.shape[3])
        words[:, block, nth] = data.view(words.dtype).view(shape)

    @property
    def _words(self) -> Tensor:
        view = self.bytes
        steps = (view.shape[3], view.storage_offset(), *view.stride()[:3])
        return view if any(step % _WORD for step in steps) else view.view(torch.int64)

    def _places(self, units: Sequence[int]) -> Tensor:
        """Return block and place inside it of each unit, [2, k] int64 on the device."""
        ids = np.array(units, dtype=np.int64) - self.first
        return stage(np.stack(np.divmod(ids, self.bytes.shape[2])), self.bytes.device)


@dataclass(frozen=True, slots=True)
class UnitViews:
    """All tensors of a cache, by whose units they hold.

    states  those of resume points
    """

    pages: Sequence[UnitView]
    swa_pages: Sequence[UnitView] = ()
    states: Sequence[UnitView] = ()

    def chosen(self, units: UnitIds) -> Iterator[tuple[UnitView, Sequence[int]]]:
        """Yield each view that holds any of the units, and which."""
        for views, ids in (
            (self.pages, units.pages),
            (self.swa_pages, units.swa_pages),
            (self.states, units.states),
        ):
            if len(ids):
                yield from ((view, ids) for view in views if view.bytes.numel())


def unit_bytes(views: UnitViews, units: UnitIds) -> int:
    """Return how many bytes units hold."""
    return sum(view.each * len(ids) for view, ids in views.chosen(units))


def read_units(views: UnitViews, units: UnitIds) -> list[Tensor]:
    """Return what units hold as pieces [bytes] uint8, which together are `unit_bytes`."""
    return [view.read(ids) for view, ids in views.chosen(units)]


def write_units(views: UnitViews, units: UnitIds, data: Tensor) -> None:
    """Write what `read_units` returned of other units, as many of each pool, joined into one.

    data  [bytes] uint8 on the device of the pools
    """
    first = 0
    for view, ids in views.chosen(units):
        size = view.each * len(ids)
        view.write(ids, data[first : first + size])
        first += size
