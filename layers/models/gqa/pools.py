"""The pages of keys and values of all layers."""

from dataclasses import dataclass

import torch

from layers.models.page_pools import PagePools
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


class KeyValuePools(PagePools):
    """Keys and values of every position.

    keys    [L, pages + 1, page_size, key heads, head_dim] float32 or bfloat16; page 0 is the dummy
            that padding writes to
    values  like `keys`
    """

    def __init__(
        self, layers: int, page: PageShape, sizes: PoolSizes, device: torch.device
    ) -> None:
        """Allocate pages of zeros: what was never written is read with a weight of 0."""
        shape = (layers, sizes.full_pages + 1, *page.shape)
        self.keys = torch.zeros(shape, dtype=page.dtype, device=device)
        self.values = torch.zeros(shape, dtype=page.dtype, device=device)
        super().__init__({"keys": self.keys, "values": self.values})
