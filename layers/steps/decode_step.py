"""A step of decoding rows: one token each, everything derived on the device from fixed buffers.

Nothing here waits for the device or branches on what it holds, so that a step can be captured in a
CUDA graph and replayed for other positions, pages and rings.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from jit_kernels.compress_fold import fold_tokens
from jit_kernels.compress_pool import BlockPages, EndedBlocks, pool_tokens
from jit_kernels.decode_indices import PageSizes, decode_indices
from jit_kernels.indexer_queries import indexer_queries
from jit_kernels.paged_attention import PagedKeys, SplitPlan, paged_attention
from jit_kernels.paged_logits import LogitsPlan, paged_logits, row_slices
from jit_kernels.select_topk import select_slots
from jit_kernels.store_kv import norm_rope_store
from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.contract import FoldWeights, PoolingWeights, StepSizes
from layers.steps.decode_rows import DecodeRows
from mem_cache.spec import div_ceil

__all__ = ["DecodeStep", "score_slices", "whole_tiles"]

KEY_TILE = 64
# Scores of so many bytes at once: 64 rows at a context of a million tokens take 64 MiB.
SCORES_BYTES = 1 << 29


class DecodeStep:
    """One step of decoding rows over the packed pools; a `Step`."""

    def __init__(
        self,
        rows: DecodeRows,
        pools: KvPools,
        sizes: StepSizes,
        rope: RopeFrequencies,
        *,
        deterministic: bool = False,
    ) -> None:
        """Derive slots, lengths and rotations that the layers share.

        deterministic  what a row attends has the same bits in any company
        """
        self._rows, self._pools, self._sizes = rows, pools, sizes
        self._deterministic = deterministic
        tree, pages = pools.spec.tree, rows.page_table.shape[1]
        self._page_blocks = tree.page_size // 4
        self._columns = pages * self._page_blocks
        self._at = at = decode_indices(
            rows.position,
            rows.page_table,
            rows.window,
            window_from=None,
            sizes=PageSizes(tree.page_size, tree.swa_page_size, tree.window),
            c128_columns=whole_tiles(pages * (tree.page_size // 128)),
            top_k=sizes.top_k,
            angles=rope.angles,
        )
        plain, compressed, blocks_4, blocks_128 = at.rotations
        self._rotation = {False: plain, True: compressed}
        self._ended = {
            4: EndedBlocks(at.c4_slot, blocks_4),
            128: EndedBlocks(at.c128_slot, blocks_128),
        }
        self._visible, self._chosen_lengths = at.c4_visible, at.c4_chosen
        self._split = {ratio: SplitPlan() for ratio in set(pools.spec.layer_ratios)}
        count = rows.position.shape[0]
        self._logits = [(part, LogitsPlan()) for part in score_slices(count, self._columns)]
        self._chosen: Tensor | None = None
        self._scored: tuple[slice, Tensor] | None = None

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [B] int64."""
        return self._rows.input_ids

    def rotation(self, *, compressed: bool) -> Tensor:
        """Return [B, 2, R] float32; see `Step`."""
        return self._rotation[compressed]

    def store_window(self, layer: int, kv: Tensor, weight: Tensor) -> None:
        """Store the rows' keys in their windows; see `Step`."""
        pools = self._pools
        norm_rope_store(
            pools.swa[layer],
            self._at.swa_slot,
            kv,
            pools.swa_layout,
            weight=weight,
            rotation=self._rotation[self._pools.spec.layer_ratios[layer] > 0],
            eps=self._sizes.eps,
            record_format=pools.spec.record_format,
        )

    def pool(self, layer: int, rows: Tensor, weights: PoolingWeights) -> None:
        """Advance a layer that compresses by 4; see `Step`."""
        pools, nth = self._pools, self._pools.nth(layer)
        pool_tokens(
            rows,
            pools.c4_state[nth],
            ape=weights.ape,
            position=self._rows.position,
            ring=self._rows.ring,
            ended=self._ended[4],
            main=BlockPages(pools.c4[nth], pools.c4_layout, weights.norm),
            index=BlockPages(pools.indexer[nth], pools.indexer_layout, weights.index_norm),
            eps=self._sizes.eps,
            record_format=pools.spec.record_format,
        )

    def fold(self, layer: int, rows: Tensor, weights: FoldWeights) -> None:
        """Advance a layer that compresses by 128; see `Step`."""
        pools, nth = self._pools, self._pools.nth(layer)
        fold_tokens(
            rows,
            pools.c128_state[nth],
            ape=weights.ape,
            position=self._rows.position,
            ring=self._rows.ring,
            ended=self._ended[128],
            pages=BlockPages(pools.c128[nth], pools.c128_layout, weights.norm),
            eps=self._sizes.eps,
            record_format=pools.spec.record_format,
        )

    def score(self, layer: int, q: Tensor, weights: Tensor) -> None:
        """Score the blocks of 4; what does not fit in memory is chosen at once; see `Step`."""
        pools = self._pools
        pages = pools.indexer[pools.nth(layer)]
        codes, folded = indexer_queries(q, weights, self._rotation[True])
        shape = (q.shape[0], whole_tiles(self._sizes.top_k))
        self._chosen = torch.empty(shape, dtype=torch.int32, device=q.device)
        for part, plan in self._logits:
            self.choose(layer)
            scores = paged_logits(
                codes[part],
                folded[part],
                pages,
                pools.indexer_layout,
                page_table=self._rows.page_table[part],
                blocks=self._at.c4_blocks[part],
                columns=self._columns,
                plan=plan,
            )
            self._scored = part, scores

    def choose(self, layer: int) -> None:
        """Choose the blocks of 4 that the rows last scored attend; see `Step`."""
        if self._scored is None:
            return
        assert self._chosen is not None
        (part, scores), self._scored = self._scored, None
        select_slots(
            scores,
            self._visible[part],
            self._rows.page_table[part],
            self._chosen[part],
            top_k=self._sizes.top_k,
            page_blocks=self._page_blocks,
        )

    def attend(self, layer: int, q: Tensor, sink: Tensor) -> Tensor:
        """Attend window and blocks where they lie; see `Step`."""
        ratio = self._pools.spec.layer_ratios[layer]
        return paged_attention(
            q,
            self._window_keys(layer),
            self._blocks(layer, ratio),
            sink=sink,
            scale=self._pools.spec.head_dim**-0.5,
            plan=self._split[ratio],
            deterministic=self._deterministic,
        )

    def _window_keys(self, layer: int) -> PagedKeys:
        pools = self._pools
        return PagedKeys(pools.swa[layer], pools.swa_layout, self._at.window_slots)

    def _blocks(self, layer: int, ratio: int) -> PagedKeys | None:
        """Return the compressed blocks that rows attend in a layer."""
        if not ratio:
            return None
        pages, layout = self._pools.blocks(layer)
        if ratio == 128:
            return PagedKeys(pages, layout, self._at.c128_slots, self._at.c128_lengths)
        assert self._chosen is not None
        return PagedKeys(pages, layout, self._chosen, self._chosen_lengths)


def score_slices(rows: int, columns: int) -> Iterator[slice]:
    """Cut the rows of a step into those that are scored at a time, `columns` blocks of 4 each."""
    return row_slices(rows, columns, workspace_bytes=SCORES_BYTES)


def whole_tiles(count: int) -> int:
    """Return how many columns of slots hold `count`: attention takes tiles of 64."""
    return div_ceil(count, KEY_TILE) * KEY_TILE
