"""Keys and values of layers that attend everything, and of layers that attend a window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jit_kernels.copy_units import copy_units
from layers.models.copies import apart
from layers.models.page_pools import PagePools
from layers.models.plain_model import PAGE_TOKENS
from layers.models.unit_views import UnitView, UnitViews
from layers.staging import stage
from mem_cache.spec import CacheSpec, Paged, PoolSizes, Window

__all__ = ["SWA_PAGE_TOKENS", "WindowLayout", "WindowPools"]

SWA_PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class WindowLayout:
    """What layers keep of a token, and for how long.

    sliding   of each layer, whether it attends a window alone
    window    tokens that such a layer attends, a token's own among them, at least 2
    heads     of keys, that this rank holds
    head_dim  channels of a head
    dtype     of keys and values
    """

    sliding: tuple[bool, ...]
    window: int
    heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def before(self) -> int:
        """Tokens before a token that a sliding layer attends."""
        return self.window - 1

    @property
    def nth(self) -> tuple[int, ...]:
        """Of each layer, which of its kind it is: the first axis of pools."""
        return tuple(self.sliding[:layer].count(kind) for layer, kind in enumerate(self.sliding))

    def page_bytes(self, tokens: int, *, sliding: bool) -> int:
        """Return what keys and values of `tokens` weigh in all layers of a kind."""
        numbers = 2 * tokens * self.heads * self.head_dim
        return self.sliding.count(sliding) * numbers * self.dtype.itemsize

    def cache(self, records: str, draft_tokens: int) -> CacheSpec:
        """Return what the runtime knows of the pools.

        Layers that attend everything find it in pages. Each sliding layer sees `before` tokens,
        so that what lies before the start of a replay has faded after so many for each of them.
        """
        sliding = self.page_bytes(SWA_PAGE_TOKENS, sliding=True)
        windows = (Window("swa", self.window, sliding),) if any(self.sliding) else ()
        return CacheSpec(
            records,
            paged=(Paged("kv", self.page_bytes(PAGE_TOKENS, sliding=False)),),
            windows=windows,
            replay_tokens=self.before * self.sliding.count(True),
            page_size=PAGE_TOKENS,
            swa_page_size=SWA_PAGE_TOKENS,
            draft_tokens=draft_tokens,
        )


class WindowPools(PagePools):
    """Keys and values in full pages, and in SWA pages.

    keys        [full layers, pages + 1, PAGE_TOKENS, heads, head_dim]; page 0 is the dummy that
                padding writes to
    values      like `keys`
    swa_keys    [sliding layers, SWA pages + 1, SWA_PAGE_TOKENS, heads, head_dim], likewise
    swa_values  like `swa_keys`
    """

    def __init__(self, layout: WindowLayout, sizes: PoolSizes, device: torch.device) -> None:
        """Allocate pages of zeros: what was never written is read with a weight of 0."""
        self.layout = layout

        def pages(units: int, tokens: int, *, sliding: bool) -> Tensor:
            shape = (layout.sliding.count(sliding), units + 1, tokens)
            shape = (*shape, layout.heads, layout.head_dim)
            return torch.zeros(shape, dtype=layout.dtype, device=device)

        names = ("keys", "values")
        self.keys, self.values = (
            pages(sizes.full_pages, PAGE_TOKENS, sliding=False) for _ in names
        )
        self.swa_keys, self.swa_values = (
            pages(sizes.swa_pages, SWA_PAGE_TOKENS, sliding=True) for _ in names
        )
        super().__init__({"keys": self.keys, "values": self.values})

    @property
    def bytes(self) -> int:
        """Bytes of all of it, the dummies included."""
        return sum(pool.nbytes for pool in self.tensors().values())

    def tensors(self) -> Mapping[str, Tensor]:
        """Return all of it by name."""
        return {
            **super().tensors(),
            "swa_keys": self.swa_keys,
            "swa_values": self.swa_values,
        }

    def unit_views(self) -> UnitViews:
        """Return pages of both kinds as bytes."""
        swa = (self.swa_keys, self.swa_values)
        return UnitViews(super().unit_views().pages, [UnitView.of(pool) for pool in swa])

    def copy_swa_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy SWA pages (source, destination) in every layer, one after the other."""
        for some in apart(pairs):
            staged = stage(np.array(some, dtype=np.int64).T, self.keys.device)
            for pool in (self.swa_keys, self.swa_values):
                copy_units(pool.flatten(2).view(torch.uint8), staged)
