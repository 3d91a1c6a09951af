"""Shapes of V4's pools, and what follows from them: sizes of state, length of a replay."""

from dataclasses import dataclass
from typing import Literal

from mem_cache.spec import TreeSpec

__all__ = ["POINT_BANKS", "POOLED_TOKENS", "PoolSpec", "RecordFormat"]

RecordFormat = Literal["fp8", "bf16", "fp32"]

# A block of 4 is pooled over as many tokens; a resume point holds as many state rows, and the
# banks of its last two positions, since it serves the position before its own, too.
POOLED_TOKENS = 8
POINT_BANKS = 2


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Shapes of the five pools of one model.

    layer_ratios     per layer: 0 (window only), 4 or 128
    head_dim         channels of a KV record; the last `rope_dim` are rotated
    index_head_dim   channels of an indexer key
    record_format    "fp8" is the packed 584-byte record and needs 448 + 64 channels
    """

    tree: TreeSpec
    layer_ratios: tuple[int, ...]
    head_dim: int
    rope_dim: int
    index_head_dim: int
    record_format: RecordFormat

    @property
    def state_rows(self) -> int:
        """C4 ring length in tokens: what a block is pooled over, twice with draft tokens.

        So rejected tokens, fewer than POOLED_TOKENS, overwrite nothing that is still read.
        """
        return 2 * POOLED_TOKENS if self.tree.draft_tokens else POOLED_TOKENS

    @property
    def state_banks(self) -> int:
        """C128 banks per ring: those of the last two positions, and one for each draft token."""
        return POINT_BANKS + self.tree.draft_tokens

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
        rings = (POOLED_TOKENS if ratio == 4 else ratio for ratio in self.layer_ratios)
        reach = max((window, *rings))
        return reach + (window - 1) * (self.num_layers - 1)

    def layers_with_ratio(self, ratio: int) -> tuple[int, ...]:
        """Indices of the layers that compress by `ratio`."""
        return tuple(i for i, r in enumerate(self.layer_ratios) if r == ratio)
