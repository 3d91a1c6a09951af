"""The pages of latent records of all layers."""

import torch

from layers.models.page_pools import PagePools
from mem_cache.spec import PoolSizes

__all__ = ["LatentPools"]


class LatentPools(PagePools):
    """A record of every position, which all heads read.

    records  [L, pages + 1, page_size, latent + turned] float32 or bfloat16; page 0 is the dummy
             that padding writes to
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        dtype: torch.dtype,
        sizes: PoolSizes,
        device: torch.device,
    ) -> None:
        """Allocate pages of zeros: what was never written is read with a weight of 0.

        shape  layers, positions of a page, channels of a record
        """
        layers, *page = shape
        self.records = torch.zeros(
            (layers, sizes.full_pages + 1, *page), dtype=dtype, device=device
        )
        super().__init__({"records": self.records})
