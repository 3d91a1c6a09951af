"""The pages of keys and values of all layers: one lifetime, no windows, no state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jit_kernels.copy_units import copy_units
from layers.models.copies import apart
from mem_cache.spec import PoolSizes

__all__ = ["KeyValuePools", "PageShape"]


@dataclass(frozen=True, slots=True)
class PageShape:
    """What one page holds in one layer, once for keys and once for values."""

    size: int
    heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """Positions, heads, channels."""
        return self.size, self.heads, self.head_dim

    @property
    def bytes(self) -> int:
        """Bytes of keys and values."""
        return 2 * self.size * self.heads * self.head_dim * self.dtype.itemsize


class KeyValuePools:
    """Keys and values of every position; a `Pools`.

    keys    [L, pages + 1, page_size, key heads, head_dim] float32 or bfloat16; page 0 is the dummy
            that padding writes to
    values  like `keys`
    """

    def __init__(
        self, layers: int, page: PageShape, sizes: PoolSizes, device: torch.device
    ) -> None:
        """Allocate pages, not initialised: nothing is used that was not written before."""
        shape = (layers, sizes.full_pages + 1, *page.shape)
        self.keys = torch.empty(shape, dtype=page.dtype, device=device)
        self.values = torch.empty(shape, dtype=page.dtype, device=device)

    @property
    def bytes(self) -> int:
        """Bytes of all of it, the dummy included."""
        return self.keys.nbytes + self.values.nbytes

    def tensors(self) -> Mapping[str, Tensor]:
        """Return all of it by name."""
        return {"keys": self.keys, "values": self.values}

    def copy_full_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy pages (source, destination) in every layer, one after the other."""
        for some in apart(pairs):
            staged = torch.tensor(some, dtype=torch.int64).to(self.keys.device).T.contiguous()
            for pool in (self.keys, self.values):
                copy_units(pool.flatten(2).view(torch.uint8), staged)

    def copy_swa_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy nothing: there are no windows."""

    def copy_states(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy nothing: there is no state."""
