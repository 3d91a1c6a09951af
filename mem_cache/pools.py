"""The device tensors of the pools, and copies of whole units across all layers."""

import torch

from jit_kernels.paged_rows import PageLayout
from mem_cache.layout import (
    C128_BLOCK_RECORDS,
    C128_PARTS,
    indexer_layout,
    record_layout,
    state_layout,
)
from mem_cache.spec import PoolSizes, PoolSpec, div_ceil

__all__ = ["KvPools"]


class KvPools:
    """Tensors of the SWA, C4, C128, indexer and compress-state pools of one model.

    Every tensor is layer-major; unit 0 is the dummy that padding writes to, so `sizes` counts
    from unit 1. Layers are addressed by their index in the model.

    swa       [L, swa_pages + 1, bytes] uint8      layout `swa_layout`
    c4        [L4, full_pages + 1, bytes] uint8    layout `c4_layout`
    indexer   [L4, full_pages + 1, bytes] uint8    layout `indexer_layout`
    c128      [L128, blocks, bytes] uint8          layout `c128_layout`; record page * k + j is the
                                                   j-th of the k records of a full page
    c4_state    [L4, rings + 1, state_rows, columns] float32    columns: layout.StateLayout
    c128_state  [L128, rings + 1, state_banks, 3, head_dim] float32
    """

    def __init__(self, spec: PoolSpec, sizes: PoolSizes, device: torch.device) -> None:
        """Allocate pools, not initialised: nothing is used that was not written before.

        So a large budget takes host memory only as it fills. Raises ValueError when a page
        holds no whole C128 record.
        """
        tree = spec.tree
        ratios = set(spec.layer_ratios) - {0}
        if any(tree.page_size % ratio for ratio in ratios):
            raise ValueError(f"page_size must be a multiple of the ratios {ratios}: {tree}")
        self.spec = spec
        self.sizes = sizes
        self.swa_layout = record_layout(spec, tree.swa_page_size)
        self.c4_layout = record_layout(spec, max(1, tree.page_size // 4))
        self.c128_layout = record_layout(spec, C128_BLOCK_RECORDS)
        self._c128_records = max(1, tree.page_size // 128)
        self.indexer_layout = indexer_layout(spec)
        c4, c128 = spec.layers_with_ratio(4), spec.layers_with_ratio(128)
        self._nth = {layer: i for layers in (c4, c128) for i, layer in enumerate(layers)}

        def pages(layers: int, count: int, layout: PageLayout) -> torch.Tensor:
            shape = (layers, count + 1, layout.page_bytes)
            return torch.empty(shape, dtype=torch.uint8, device=device)

        def state(layers: int, *shape: int) -> torch.Tensor:
            shape = (layers, sizes.rings + 1, *shape)
            return torch.empty(shape, dtype=torch.float32, device=device)

        self.swa = pages(spec.num_layers, sizes.swa_pages, self.swa_layout)
        self.c4 = pages(len(c4), sizes.full_pages, self.c4_layout)
        self.indexer = pages(len(c4), sizes.full_pages, self.indexer_layout)
        records = (sizes.full_pages + 1) * self._c128_records
        self.c128 = pages(len(c128), div_ceil(records, C128_BLOCK_RECORDS) - 1, self.c128_layout)
        self.c4_state = state(len(c4), spec.state_rows, state_layout(spec).width)
        self.c128_state = state(len(c128), spec.state_banks, C128_PARTS, spec.head_dim)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, dummies included."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all pool tensors by name."""
        names = ("swa", "c4", "indexer", "c128", "c4_state", "c128_state")
        return {name: getattr(self, name) for name in names}

    def nth(self, layer: int) -> int:
        """Return which of the layers with its ratio `layer` is: the first axis of its pools."""
        return self._nth[layer]

    def blocks(self, layer: int) -> tuple[torch.Tensor, PageLayout]:
        """Return the pages of a compressing layer's records, [pages, bytes], and their layout."""
        nth = self._nth[layer]
        if self.spec.layer_ratios[layer] == 4:
            return self.c4[nth], self.c4_layout
        return self.c128[nth], self.c128_layout

    def copy_full_page(self, source: int, destination: int) -> None:
        """Copy full page `source` over `destination`, in every layer."""
        for pool in (self.c4, self.indexer):
            pool[:, destination] = pool[:, source]
        count = self._c128_records
        for j in range(count):
            self._copy_c128_record(source * count + j, destination * count + j)

    def _copy_c128_record(self, source: int, destination: int) -> None:
        """Copy a record over another, in every layer at once: few launches, whatever the layers."""
        layout = self.c128_layout
        old, new = divmod(source, layout.page_rows), divmod(destination, layout.page_rows)
        first = 0
        for size in (layout.data_bytes, layout.scale_bytes):
            there, here = (
                self.c128[:, page, first + row * size : first + (row + 1) * size]
                for page, row in (new, old)
            )
            there.copy_(here)
            first += layout.page_rows * size

    def copy_swa_page(self, source: int, destination: int) -> None:
        """Copy SWA page `source` over `destination`, in every layer."""
        self.swa[:, destination] = self.swa[:, source]

    def copy_ring(self, source: int, destination: int) -> None:
        """Copy ring `source` over `destination`, in every layer."""
        for state in (self.c4_state, self.c128_state):
            state[:, destination] = state[:, source]
