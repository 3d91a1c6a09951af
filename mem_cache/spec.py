"""Sizes of the coordinates and of the pools, as plain integers.

`TreeSpec` is all that the tree, the allocators and the request table know of a model.
`PoolSpec` is what the device tensors need besides. Both are derived from a model's
configuration one floor up; nothing here knows a model.
"""

from dataclasses import dataclass
from typing import Literal

RecordFormat = Literal["fp8", "bf16", "fp32"]

MAX_DRAFT_TOKENS = 7
# A block of 4 is pooled over as many tokens; a resume point holds as many state rows, and the
# banks of its last two positions, since it serves the position before its own, too.
POOLED_TOKENS = 8
POINT_BANKS = 2


def div_ceil(value: int, divisor: int) -> int:
    """Return `value / divisor` rounded up, for non-negative integers."""
    return -(-value // divisor)


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """Units of the host side: tokens per page, per SWA page, and per window.

    page_size      tokens in a full page, the unit of the tree
    swa_page_size  tokens in an SWA page; divides `page_size`
    window         tokens a resume point must hold before its position
    draft_tokens   most guessed tokens of a row in a step, 0 to MAX_DRAFT_TOKENS: so many positions
                   may be written and rejected while the window before them is still needed
    """

    page_size: int = 256
    swa_page_size: int = 64
    window: int = 128
    draft_tokens: int = 0

    def __post_init__(self) -> None:
        if min(self.page_size, self.swa_page_size, self.window) < 1:
            raise ValueError(f"sizes must be positive: {self}")
        if self.page_size % self.swa_page_size:
            raise ValueError(f"page_size must be a multiple of swa_page_size: {self}")
        if not 0 <= self.draft_tokens <= MAX_DRAFT_TOKENS:
            raise ValueError(f"draft_tokens must be 0 to {MAX_DRAFT_TOKENS}: {self}")

    @property
    def window_pages(self) -> int:
        """SWA pages of a window: a ring, in which a position takes the place of one before it.

        It has room for draft tokens besides: rejected ones overwrite nothing that is still read.
        """
        return div_ceil(self.window + self.draft_tokens, self.swa_page_size)

    @property
    def row_swa_pages(self) -> int:
        """SWA pages one row may need at once: its window, and the one it is being copied from."""
        return 2 * self.window_pages

    def window_pages_at(self, position: int) -> int:
        """SWA pages of the ring, from its first on, that [0, position) has been written to.

        The window before `position` lies in them, in all of them where `draft_tokens` is 0.
        """
        return min(self.window_pages, div_ceil(position, self.swa_page_size))


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What the runtime knows of a model's pools: units, and what each of them weighs.

    record_format    of what pages hold, for people
    full_page_bytes  of one full page in all layers; swa_page_bytes and ring_bytes likewise
    replay_tokens    tokens before a position that make its window and ring exact in every layer
    """

    tree: TreeSpec
    record_format: str
    full_page_bytes: int
    swa_page_bytes: int
    ring_bytes: int
    replay_tokens: int


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """How many units each pool has, the dummy unit 0 not counted."""

    full_pages: int
    swa_pages: int
    rings: int
