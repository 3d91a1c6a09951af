"""Sizes of the coordinates and of the pools, as plain integers.

`TreeSpec` is all that the tree, the allocators and the request table know of a model.
`PoolSpec` is what the device tensors need besides. Both are derived from a model's
configuration one floor up; nothing here knows a model.
"""

from dataclasses import dataclass
from typing import Literal

RecordFormat = Literal["fp8", "bf16", "fp32"]


def div_ceil(value: int, divisor: int) -> int:
    """Return `value / divisor` rounded up, for non-negative integers."""
    return -(-value // divisor)


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """Units of the host side: tokens per page, per SWA page, and per window.

    page_size      tokens in a full page, the unit of the tree
    swa_page_size  tokens in an SWA page; divides `page_size`
    window         tokens a resume point must hold before its position
    """

    page_size: int = 256
    swa_page_size: int = 64
    window: int = 128

    def __post_init__(self) -> None:
        if min(self.page_size, self.swa_page_size, self.window) < 1:
            raise ValueError(f"sizes must be positive: {self}")
        if self.page_size % self.swa_page_size:
            raise ValueError(f"page_size must be a multiple of swa_page_size: {self}")

    @property
    def window_pages(self) -> int:
        """SWA pages of a window: a ring, in which a position takes the place of one before it."""
        return div_ceil(self.window, self.swa_page_size)

    @property
    def row_swa_pages(self) -> int:
        """SWA pages one row may need at once: its window, and the one it is being copied from."""
        return 2 * self.window_pages

    def window_pages_at(self, position: int) -> int:
        """SWA pages of the ring that hold something of [position - window, position)."""
        return min(self.window_pages, div_ceil(position, self.swa_page_size))


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Shapes of the five pools of one model.

    layer_ratios     per layer: 0 (window only), 4 or 128
    head_dim         channels of a KV record; the last `rope_dim` are rotated
    index_head_dim   channels of an indexer key
    record_format    "fp8" is the packed 584-byte record and needs 448 + 64 channels
    state_rows       C4 ring length in tokens, twice the ratio (more with draft tokens)
    state_banks      C128 banks per ring, one per step that may be in flight, plus one
    """

    tree: TreeSpec
    layer_ratios: tuple[int, ...]
    head_dim: int
    rope_dim: int
    index_head_dim: int
    record_format: RecordFormat
    state_rows: int = 8
    state_banks: int = 2

    @property
    def num_layers(self) -> int:
        """Layers, each of which keeps a window."""
        return len(self.layer_ratios)

    @property
    def replay_tokens(self) -> int:
        """Tokens before a position that make its window and ring exact in every layer.

        A token sees window - 1 earlier ones in each layer, so that what lies before the start
        has faded from the last layer's window after this many, and from its ring, which may reach
        further back than a short window. Source: design, replay length.
        """
        window = self.tree.window
        rings = (self.state_rows if ratio == 4 else ratio for ratio in self.layer_ratios)
        reach = max((window, *rings))
        return reach + (window - 1) * (self.num_layers - 1)

    def layers_with_ratio(self, ratio: int) -> tuple[int, ...]:
        """Indices of the layers that compress by `ratio`."""
        return tuple(i for i, r in enumerate(self.layer_ratios) if r == ratio)


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """How many units each pool has, the dummy unit 0 not counted."""

    full_pages: int
    swa_pages: int
    rings: int
