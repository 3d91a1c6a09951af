"""Tokens of chunks that attend a workspace: records of all rows, decoded once a layer."""

import torch
from torch import Tensor

from jit_kernels.kv_workspace import RecordSet, fill_workspace
from jit_kernels.sparse_prefill import sparse_prefill
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.chunks.blocks import ChunkBlocks, ChunkIndex, ChunkWindow
from layers.steps.chunks.choice import ChunkChoice, QueryHeads
from layers.steps.chunks.plan import ChunkPlan

__all__ = ["ChunkWorkspace"]


class ChunkWorkspace:
    """What the tokens of a step attend, by entries of a workspace that all layers share."""

    def __init__(
        self,
        plan: ChunkPlan,
        window: ChunkWindow,
        blocks: dict[int, ChunkBlocks],
        *,
        slots: dict[int, Tensor],
        pools: KvPools,
        top_k: int,
    ) -> None:
        """Allocate the workspace, and derive from a step what its layers share.

        blocks  those of each ratio
        slots   ratio -> [count] int32 full-page slots of the listed blocks
        """
        self._plan, self._window, self._blocks = plan, window, blocks
        self._slots, self._pools, self._top_k = slots, pools, top_k
        most = max((part.listed.count for part in blocks.values()), default=0)
        shape = (window.entries + most, pools.spec.head_dim)
        self._workspace = torch.empty(shape, dtype=torch.bfloat16, device=plan.device)
        self._choice = self._choice_of_blocks()
        self._index = {ratio: self._index_of(ratio) for ratio in set(pools.spec.layer_ratios)}

    def choose(self, layer: int, heads: QueryHeads) -> None:
        """Choose blocks of 4 where tokens see more than they attend."""
        if self._choice is None:
            return
        pools, (index, _) = self._pools, self._index[4].whole
        self._choice.fill(
            index[:, pools.spec.tree.window :],
            heads,
            pools.indexer[pools.nth(layer)],
            pools.indexer_layout,
        )

    def attend(self, layer: int, q: Tensor, sink: Tensor) -> Tensor:
        """Return what the tokens read, [T, H, 512] bfloat16."""
        ratio = self._pools.spec.layer_ratios[layer]
        sets = [self._window.records()]
        if ratio:
            pages, layout = self._pools.blocks(layer)
            sets.append(RecordSet(pages, layout, self._slots[ratio]))
        fill_workspace(self._workspace, sets)
        scale = self._pools.spec.head_dim**-0.5
        parts = [
            sparse_prefill(q[part], self._workspace, index, sink=sink, scale=scale, lengths=lengths)
            for part, index, lengths in self._index[ratio].parts()
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _choice_of_blocks(self) -> ChunkChoice | None:
        """Return who chooses, where some token sees more blocks of 4 than it attends."""
        plan, first = self._plan, self._window.entries
        if plan.keys is None:
            return None
        return ChunkChoice(plan, self._blocks[4], plan.keys, first=first, top_k=self._top_k)

    def _index_of(self, ratio: int) -> ChunkIndex:
        """Return what tokens attend in the layers of a ratio."""
        window = self._pools.spec.tree.window
        if not ratio:
            return ChunkIndex(self._plan, window)
        blocks, chosen = self._blocks[ratio], ratio == 4 and self._choice is not None
        return ChunkIndex(
            self._plan,
            window,
            blocks=blocks.listed,
            columns=self._top_k if chosen else blocks.columns,
            chosen=chosen,
        )
