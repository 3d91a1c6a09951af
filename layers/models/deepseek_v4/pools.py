"""The device tensors of V4's pools, and copies of whole units across all layers."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from jit_kernels.copy_units import copy_units
from jit_kernels.paged_rows import PageLayout
from layers.models.copies import apart
from layers.models.deepseek_v4.layout import (
    C128_BLOCK_RECORDS,
    C128_PARTS,
    indexer_layout,
    record_layout,
    state_layout,
)
from layers.models.deepseek_v4.pool_spec import POINT_BANKS, POOLED_TOKENS, PoolSpec
from layers.models.unit_views import UnitView, UnitViews
from mem_cache.spec import PoolSizes, div_ceil

__all__ = ["KvPools", "state_entry"]


class KvPools:
    """Tensors of the SWA, C4, C128, indexer and compress-state pools of one model.

    Every tensor is layer-major; unit 0 is the dummy that padding writes to, so `sizes` counts
    from unit 1. Layers are addressed by their index in the model.

    swa       [L, swa_pages + 1, bytes] uint8      layout `swa_layout`
    c4        [L4, full_pages + 1, bytes] uint8    layout `c4_layout`
    indexer   [L4, full_pages + 1, bytes] uint8    layout `indexer_layout`
    c128      [L128, blocks, bytes] uint8          layout `c128_layout`; record page * k + j is the
                                                   j-th of the k records of a full page
    c4_state    [L4, states + 1, state_rows, columns] float32    columns: layout.StateLayout
    c128_state  [L128, states + 1, state_banks, 3, head_dim] float32

    A state holds position t in row t % state_rows and bank t % state_banks. Where resume points
    keep another form (`sizes.live_states`), only the dummy and the rows' units have these sizes;
    behind them lie POOLED_TOKENS rows and POINT_BANKS banks of each unit of a resume point.
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

        def state(layers: int, span: int, *shape: int) -> torch.Tensor:
            shape = (layers, self._state_units(shape[0], span), *shape)
            return torch.empty(shape, dtype=torch.float32, device=device)

        self.swa = pages(spec.num_layers, sizes.swa_pages, self.swa_layout)
        self.c4 = pages(len(c4), sizes.full_pages, self.c4_layout)
        self.indexer = pages(len(c4), sizes.full_pages, self.indexer_layout)
        records = (sizes.full_pages + 1) * self._c128_records
        self.c128 = pages(len(c128), div_ceil(records, C128_BLOCK_RECORDS) - 1, self.c128_layout)
        width = state_layout(spec).width
        self.c4_state = state(len(c4), POOLED_TOKENS, spec.state_rows, width)
        self.c128_state = state(len(c128), POINT_BANKS, spec.state_banks, C128_PARTS, spec.head_dim)

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

    def copy_full_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy full pages (source, destination) in every layer, one after the other."""
        for some in apart(pairs):
            staged = self._staged(some)
            for pool in (self.c4, self.indexer):
                copy_units(pool, staged)
            if self.c128.numel():
                self._copy_c128_records(some)

    def copy_swa_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy SWA pages (source, destination) in every layer, one after the other."""
        for some in apart(pairs):
            copy_units(self.swa, self._staged(some))

    def copy_states(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy states (source, destination, position) in every layer, one after the other.

        A unit's number says which form it has: a row's is packed into a resume point's, or the
        other way round, by the position that the source is the state of.
        """
        if self.sizes.live_states:
            for copy in copies:
                self._copy_entries(self.c4_state, copy, POOLED_TOKENS)
                self._copy_entries(self.c128_state, copy, POINT_BANKS)
            return
        for some in apart([(source, target) for source, target, _ in copies]):
            staged = self._staged(some)
            for state in (self.c4_state, self.c128_state):
                if state.numel():
                    copy_units(state.flatten(2).view(torch.uint8), staged)

    def unit_views(self) -> UnitViews:
        """Return all of it as bytes; of states those of resume points, in their form."""
        pages = [UnitView.of(pool) for pool in (self.c4, self.indexer)]
        return UnitViews(
            [*pages, *(UnitView(parts) for parts in self._c128_parts())],
            [UnitView.of(self.swa)],
            [self._kept(self.c4_state, POOLED_TOKENS), self._kept(self.c128_state, POINT_BANKS)],
        )

    def _kept(self, pool: Tensor, span: int) -> UnitView:
        """Return the view of resume points' states, of `span` entries each."""
        live = self.sizes.live_states
        if not live or not pool.numel():
            return UnitView.of(pool)
        entries = pool.flatten(1, 2)[:, (live + 1) * pool.shape[2] :]
        kept = entries[:, : self.sizes.kept_states * span].unflatten(1, (-1, span))
        return UnitView(kept.flatten(2).view(torch.uint8).unsqueeze(2), first=live + 1)

    def _state_units(self, entries: int, span: int) -> int:
        """Return the units of `entries` that all states take, those of resume points included."""
        sizes = self.sizes
        if not sizes.live_states:
            return sizes.states + 1
        return sizes.live_states + 1 + div_ceil(sizes.kept_states * span, entries)

    def _copy_entries(self, pool: Tensor, copy: tuple[int, int, int], span: int) -> None:
        """Copy the last `span` entries before a position, each to where the other form has it."""
        if not pool.numel():
            return
        source, target, position = copy
        held = torch.arange(max(0, position - span), position)
        sizes = {"entries": pool.shape[2], "span": span, "live": self.sizes.live_states}
        places = [
            state_entry(torch.full_like(held, unit), held, **sizes) for unit in (source, target)
        ]
        old, new = self._staged(torch.stack(places, 1).tolist())
        entries = pool.flatten(1, 2)
        entries.index_copy_(1, new, entries.index_select(1, old))

    def _copy_c128_records(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the records of full pages, which lie side by side in a block, as do their scales."""
        groups = self.c128_layout.page_rows // self._c128_records
        places = [divmod(page, groups) for pair in pairs for page in pair]
        block, group = self._staged(places).view(2, len(pairs), 2)
        for parts in self._c128_parts():
            parts[:, block[:, 1], group[:, 1]] = parts[:, block[:, 0], group[:, 0]]

    def _c128_parts(self) -> Iterator[Tensor]:
        """Yield views of records and of scales, [L128, blocks, full pages of a block, bytes]."""
        layout, each = self.c128_layout, self._c128_records
        first = 0
        for size in (layout.data_bytes, layout.scale_bytes):
            if size:
                room = self.c128[:, :, first : first + layout.page_rows * size]
                yield room.unflatten(2, (layout.page_rows // each, each * size))
            first += layout.page_rows * size

    def _staged(self, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Return pairs on the device, [2, n] int64; the host does not wait for it."""
        device = self.swa.device
        pinned = device.type == "cuda"
        units = torch.tensor(pairs, dtype=torch.int64, device="cpu", pin_memory=pinned)
        return units.to(device, non_blocking=True).T.contiguous()


def state_entry(unit: Tensor, position: Tensor, *, entries: int, span: int, live: int) -> Tensor:
    """Return which row, or bank, of all units' holds positions in states, [n] int64 as both are.

    entries  of a unit in the rows' form
    span     of one in the form of resume points, which those behind `live` have; 0: none has
    """
    own = unit * entries + position % entries
    if not live:
        return own
    kept = (live + 1) * entries + (unit - live - 1) * span + position % span
    return torch.where(unit <= live, own, kept)
