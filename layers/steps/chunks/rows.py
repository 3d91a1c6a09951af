"""Tokens of chunks that choose and attend as decoding rows do, bit by bit.

Each token is a row of its own over pages: its window lies in the pages of the step, its blocks in
the pools. So a position has the same bits whether it is decoded or part of a chunk, at the price of
reading for each token what neighbours share.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from jit_kernels.indexer_queries import indexer_queries
from jit_kernels.paged_attention import PagedKeys, SplitPlan, paged_attention
from jit_kernels.paged_logits import LogitsPlan, paged_logits
from jit_kernels.select_topk import select_topk
from jit_kernels.translate_blocks import translate_blocks
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.chunks.blocks import ChunkBlocks, ChunkIndex, ChunkWindow
from layers.steps.chunks.choice import SCORES_BYTES, QueryHeads
from layers.steps.chunks.plan import ChunkPlan
from layers.steps.decode_step import whole_tiles
from layers.steps.equal_slices import MOST_ROWS, equal_slices

__all__ = ["ChunkRows"]


@dataclass(slots=True)
class _Rows:
    """Some tokens of the step as rows of a call, and what their calls share.

    part    which tokens
    row     [b] int64   row of the batch of each
    seen    ratio -> [b] int32 blocks that each sees
    read    ratio -> [b] int32 blocks that each attends
    split   ratio -> how calls of layers of this ratio are divided
    chosen  [b, K] int32   slots of the blocks of 4 that were chosen last
    """

    part: slice
    row: Tensor
    seen: dict[int, Tensor]
    read: dict[int, Tensor]
    split: dict[int, SplitPlan]
    logits: LogitsPlan = field(default_factory=LogitsPlan)
    chosen: Tensor | None = None


class ChunkRows:
    """What the tokens of a step attend, token by token."""

    def __init__(
        self,
        plan: ChunkPlan,
        window: ChunkWindow,
        blocks: Mapping[int, ChunkBlocks],
        *,
        pools: KvPools,
        top_k: int,
    ) -> None:
        """Derive from a step what its layers share.

        blocks  those of each ratio
        """
        self._pools, self._window = pools, window
        self._table, self._top_k = plan.page_table, top_k
        index, _ = ChunkIndex(plan, self._pools.spec.tree.window).whole
        self._windows = index[:, : whole_tiles(self._pools.spec.tree.window)].contiguous()
        self._columns = {ratio: part.columns for ratio, part in blocks.items()}
        self._chooses = self._columns.get(4, 0) > self._top_k
        self._slots = {
            ratio: self._slots_of(ratio) for ratio in blocks if not (ratio == 4 and self._chooses)
        }
        scores = max(1, 4 * self._columns.get(4, 0))
        most = min(MOST_ROWS, max(1, SCORES_BYTES // scores))
        self._parts = [self._rows_of(plan, part) for part in equal_slices(plan.count, most)]

    def choose(self, layer: int, heads: QueryHeads) -> None:
        """Choose blocks of 4 where tokens see more than they attend."""
        if not self._chooses:
            return
        pools = self._pools
        pages, page_blocks = pools.indexer[pools.nth(layer)], pools.spec.tree.page_size // 4
        for rows in self._parts:
            # Scores may begin before the launch before them has ended: that is not to be the one
            # that writes the table.
            table = self._table.index_select(0, rows.row)
            part = heads.q[rows.part], heads.weights[rows.part], heads.rotation[rows.part]
            codes, weights = indexer_queries(*part)
            scores = paged_logits(
                codes,
                weights,
                pages,
                pools.indexer_layout,
                page_table=table,
                blocks=rows.seen[4],
                columns=self._columns[4],
                plan=rows.logits,
            )
            best = select_topk(scores, rows.seen[4].to(torch.int64), top_k=self._top_k)
            shape = (best.shape[0], whole_tiles(self._top_k))
            rows.chosen = torch.empty(shape, dtype=torch.int32, device=best.device)
            translate_blocks(best, table, rows.chosen, page_blocks=page_blocks)

    def attend(self, layer: int, q: Tensor, sink: Tensor) -> Tensor:
        """Return what the tokens read, [T, H, 512] bfloat16."""
        ratio = self._pools.spec.layer_ratios[layer]
        out = torch.empty_like(q)
        for rows in self._parts:
            out[rows.part] = paged_attention(
                q[rows.part],
                self._window.keys(self._windows[rows.part]),
                self._blocks(layer, ratio, rows),
                sink=sink,
                scale=self._pools.spec.head_dim**-0.5,
                plan=rows.split[ratio],
                deterministic=True,
            )
        return out

    def _blocks(self, layer: int, ratio: int, rows: _Rows) -> PagedKeys | None:
        """Return the compressed blocks that some tokens attend in a layer."""
        if not ratio:
            return None
        pages, layout = self._pools.blocks(layer)
        if ratio in self._slots:
            slots = self._slots[ratio].index_select(0, rows.row)
        else:
            assert rows.chosen is not None
            slots = rows.chosen
        return PagedKeys(pages, layout, slots, rows.read[ratio])

    def _slots_of(self, ratio: int) -> Tensor:
        """Return the slots of a batch row's blocks from block 0 on, [n, K] int32."""
        table, columns = self._table, self._columns[ratio]
        # Attention wants a tile even where nobody sees a block.
        shape = (table.shape[0], whole_tiles(max(1, columns)))
        out = torch.empty(shape, dtype=torch.int32, device=table.device)
        block = torch.arange(columns, device=table.device).expand(table.shape[0], columns)
        translate_blocks(block, table, out, page_blocks=self._pools.spec.tree.page_size // ratio)
        return out

    def _rows_of(self, plan: ChunkPlan, part: slice) -> _Rows:
        position = plan.position[part] + 1
        seen = {ratio: (position // ratio).to(torch.int32) for ratio in self._columns}
        read = dict(seen)
        if self._chooses:
            read[4] = seen[4].clamp(max=self._top_k)
        split = {ratio: SplitPlan() for ratio in (0, *self._columns)}
        return _Rows(part, plan.row[part], seen, read, split)
