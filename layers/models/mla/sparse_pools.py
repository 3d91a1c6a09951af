"""The pages of latent records and indexer keys of all layers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from jit_kernels.indexer_keys import decode_keys, encode_keys
from jit_kernels.kv_records import RECORD_DTYPES
from jit_kernels.latent_records import decode_latents, encode_latents, latent_record_bytes
from jit_kernels.paged_rows import PageLayout, gather_rows, store_rows
from layers.models.page_pools import PagePools
from mem_cache.spec import PoolSizes, div_ceil

__all__ = ["PAGE_KEYS", "SparsePage", "SparsePools"]

# Indexer keys lie in groups of so many: first their numbers, then their scales.
PAGE_KEYS = 64
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class SparsePage:
    """Byte map of a page of one layer.

    tokens         positions of a page, a multiple of PAGE_KEYS
    channels       of a record; the last `turned` are rotated
    turned
    key_channels   of an indexer key
    record_format  "fp32", "bf16" or "fp8"
    """

    tokens: int
    channels: int
    turned: int
    key_channels: int
    record_format: str

    @property
    def record_bytes(self) -> int:
        """Bytes of a record: 656 in fp8 for 512 + 64 channels."""
        return latent_record_bytes(
            self.channels, record_format=self.record_format, rope_channels=self.turned
        )

    @property
    def keys(self) -> PageLayout:
        """Where PAGE_KEYS indexer keys lie: 8448 bytes in fp8 for 128 channels."""
        data, scale = self.key_channels, _FLOAT_BYTES
        if self.record_format != "fp8":
            data, scale = data * RECORD_DTYPES[self.record_format].itemsize, 0
        size = div_ceil(PAGE_KEYS * (data + scale), data) * data
        return PageLayout(PAGE_KEYS, data, scale, size)

    @property
    def bytes(self) -> int:
        """Bytes of records and keys of a page."""
        return self.tokens * self.record_bytes + self.tokens // PAGE_KEYS * self.keys.page_bytes


class SparsePools(PagePools):
    """A record and an indexer key of every position; slots are page * page_size + position in it.

    records  [L, pages + 1, page_size, record bytes] uint8; page 0 is the dummy that padding writes
             to
    keys     [L, pages + 1, page_size / PAGE_KEYS, layout.page_bytes] uint8
    """

    def __init__(
        self, layers: int, page: SparsePage, sizes: PoolSizes, device: torch.device
    ) -> None:
        """Allocate pages, not initialised: nothing is used that was not written before."""
        self.page, self._layout = page, page.keys
        pages, groups = sizes.full_pages + 1, page.tokens // PAGE_KEYS

        def room(*shape: int) -> Tensor:
            return torch.empty((layers, pages, *shape), dtype=torch.uint8, device=device)

        self.records = room(page.tokens, page.record_bytes)
        self.keys = room(groups, self._layout.page_bytes)
        super().__init__({"records": self.records, "keys": self.keys})

    @property
    def key_layout(self) -> PageLayout:
        """Where the keys of a group of PAGE_KEYS lie."""
        return self._layout

    def key_groups(self, layer: int) -> Tensor:
        """Return the keys of a layer in groups, a view, [(pages + 1) * groups, bytes] uint8."""
        return self.keys[layer].flatten(0, 1)

    def store_records(self, layer: int, slots: Tensor, records: Tensor) -> None:
        """Write records [M, channels] float32 to `slots` [M] int64."""
        page = self.page
        rows = encode_latents(records, record_format=page.record_format, rope_channels=page.turned)
        self.records[layer].flatten(0, 1).index_copy_(0, slots, rows)

    def read_records(self, layer: int, slots: Tensor) -> Tensor:
        """Return the records at `slots` [M] int64, [M, channels] float32."""
        page, rows = self.page, self.records[layer].flatten(0, 1).index_select(0, slots)
        return decode_latents(
            rows,
            record_format=page.record_format,
            channels=page.channels,
            rope_channels=page.turned,
        )

    def store_keys(self, layer: int, slots: Tensor, keys: Tensor) -> None:
        """Write indexer keys [M, key_channels] float32 to `slots` [M] int64."""
        rows = encode_keys(keys, record_format=self.page.record_format)
        store_rows(self.key_groups(layer), slots, rows, self._layout)

    def read_keys(self, layer: int, slots: Tensor) -> Tensor:
        """Return the indexer keys at `slots` [M] int64, [M, key_channels] float32."""
        rows = gather_rows(self.key_groups(layer), slots, self._layout)
        return decode_keys(rows, record_format=self.page.record_format)
