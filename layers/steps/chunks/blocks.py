"""What the chunks of a step store and attend: windows, finished blocks, entries of a workspace.

The workspace that tokens attend has the order of `jit_kernels.prefill_indices`: keys before the
chunks, keys of the chunks, blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jit_kernels.compress_pool import ChunkTokens, EndedBlocks, StateSaves
from jit_kernels.copy_records import copy_records
from jit_kernels.kv_workspace import RecordSet
from jit_kernels.paged_attention import PagedKeys
from jit_kernels.paged_logits import row_slices
from jit_kernels.prefill_indices import BlockList, prefill_index
from jit_kernels.store_kv import norm_rope_store
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.chunks.plan import BlockPlan, ChunkPlan
from mem_cache.spec import div_ceil

__all__ = ["INDEX_BYTES", "ChunkBlocks", "ChunkIndex", "ChunkWindow", "chunk_tokens"]

# An index of all tokens that would take more is made slice by slice in every layer instead, at a
# few percent of what attention over so many blocks takes.
INDEX_BYTES = 64 << 20


def chunk_tokens(plan: ChunkPlan) -> ChunkTokens:
    """Return the tokens as the compressors take them."""
    return ChunkTokens(plan.position, plan.row, plan.chunk_start, plan.ring)


class ChunkWindow:
    """Window keys of a step's chunks, in pages of the step that all layers share.

    A layer's keys before the chunks and those of the chunks lie there side by side, each in the
    slot that is its entry of the workspace. What resume points and rows keep is copied from there
    once all tokens have attended, so that nothing is overwritten while it may still be read.

    entries  n * (window - 1) + T, those of the workspace before the blocks
    """

    def __init__(self, plan: ChunkPlan, pools: KvPools, old: Tensor) -> None:
        """Allocate the pages.

        old  [n * (window - 1)] int32 SWA slots of the positions before each chunk; -1: not read
        """
        self._pools, self._layout = pools, pools.swa_layout
        before = old.shape[0]
        self.entries = before + plan.count
        pages = div_ceil(self.entries, self._layout.page_rows)
        shape = (pages, self._layout.page_bytes)
        self._pages = torch.empty(shape, dtype=torch.uint8, device=plan.device)
        entry = torch.arange(self.entries, dtype=torch.int32, device=plan.device)
        self._old, self._before = old, entry[:before]
        self._chunk = entry[before:].to(torch.int64)
        self._held = torch.cat((torch.where(old < 0, -1, self._before), entry[before:]))
        self._kept, self._wanted = plan.kept, plan.wanted

    def store(
        self, layer: int, kv: Tensor, *, weight: Tensor, rotation: Tensor, eps: float
    ) -> None:
        """Fetch the layer's keys before the chunks, norm, rotate and store those of the chunks.

        kv        [T, D] float32
        weight    [D] float32
        rotation  [T, 2, R] float32
        """
        copy_records(
            RecordSet(self._pools.swa[layer], self._layout, self._old),
            RecordSet(self._pages, self._layout, self._before),
        )
        norm_rope_store(
            self._pages,
            self._chunk,
            kv,
            self._layout,
            weight=weight,
            rotation=rotation,
            eps=eps,
            record_format=self._pools.spec.record_format,
        )

    def records(self) -> RecordSet:
        """Return the keys of the layer last stored, entry by entry; those not read are zeros."""
        return RecordSet(self._pages, self._layout, self._held)

    def keys(self, slots: Tensor) -> PagedKeys:
        """Return the keys of the layer last stored that rows name by their entries.

        slots  [B, K] int32, K a multiple of 64; -1: none
        """
        return PagedKeys(self._pages, self._layout, slots)

    def save(self, layer: int) -> None:
        """Write to the pool what the step saves of the layer last stored."""
        copy_records(
            RecordSet(self._pages, self._layout, self._kept),
            RecordSet(self._pools.swa[layer], self._layout, self._wanted),
        )


@dataclass(frozen=True, slots=True)
class ChunkBlocks:
    """Blocks of one ratio: what a step's chunks finish and save, and what they may see.

    last     [m] int64 token that finishes each of `ended`
    ended    blocks to write
    saves    entries of the rings to write
    listed   blocks of all rows, in the order of the rows; base counts from the first of them
    columns  most blocks that a token sees
    """

    last: Tensor
    ended: EndedBlocks
    saves: StateSaves
    listed: BlockList
    columns: int

    @classmethod
    def of(cls, plan: BlockPlan, ratio: int, rotation: Tensor) -> "ChunkBlocks":
        """Return them as the ops take them.

        rotation  [m, 2, R] float32   of the blocks' first tokens
        """
        return cls(
            last=plan.last,
            ended=EndedBlocks(plan.slots, rotation),
            saves=StateSaves(plan.source, plan.target),
            listed=BlockList(ratio, plan.base, plan.count),
            columns=plan.columns,
        )


class ChunkIndex:
    """Entries of the workspace that each token attends, at once or in slices of tokens."""

    def __init__(
        self,
        plan: ChunkPlan,
        window: int,
        *,
        blocks: BlockList | None = None,
        columns: int = 0,
        chosen: bool = False,
    ) -> None:
        """Make the whole index unless blocks would make it take more than INDEX_BYTES.

        blocks, columns, chosen  as `prefill_index` takes them; an index to be filled by choice is
                                 made whole in any case: its columns do not grow with the context
        """
        self._plan, self._window = plan, window
        self._blocks, self._columns, self._chosen = blocks, columns, chosen
        self._windows: Tensor | None = None
        self._slices = [slice(0, plan.count)]
        if columns and not chosen:
            width = window + columns
            self._slices = list(row_slices(plan.count, width, workspace_bytes=INDEX_BYTES))
        self._whole: tuple[Tensor, Tensor] | None = None
        if len(self._slices) == 1:
            self._whole = self._made(self._slices[0])
        else:
            self._windows = ChunkIndex(plan, window).whole[0]

    @property
    def whole(self) -> tuple[Tensor, Tensor]:
        """Return index [T, K] and lengths [T], both int32; only where it was made at once."""
        assert self._whole is not None
        return self._whole

    def parts(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield slices of tokens that make up all, with their index and lengths."""
        if self._whole is not None:
            yield self._slices[0], *self._whole
            return
        for part in self._slices:
            yield part, *self._made(part)

    def _made(self, part: slice) -> tuple[Tensor, Tensor]:
        plan, blocks = self._plan, self._blocks
        # The op takes the tokens that it is given for all: blocks begin later by the others, and
        # the windows of a slice are those of the whole.
        others = plan.count - (part.stop - part.start)
        if blocks is not None and others:
            blocks = replace(blocks, base=blocks.base + others)
        index, lengths = prefill_index(
            plan.position[part],
            plan.row[part],
            plan.chunk_start,
            window_from=plan.window_from,
            window=self._window,
            columns=self._columns,
            blocks=blocks,
            chosen=self._chosen,
        )
        if self._windows is not None:
            index[:, : self._window] = self._windows[part, : self._window]
        return index, lengths
