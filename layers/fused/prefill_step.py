"""A step of chunks: where their tokens read and write, made once on the device for all layers."""

import torch
from torch import Tensor

from jit_kernels.compress_fold import fold_chunks
from jit_kernels.compress_pool import BlockPages, pool_chunks
from jit_kernels.decode_indices import PageSizes
from jit_kernels.kv_workspace import RecordSet, fill_workspace
from jit_kernels.paged_rows import PageLayout
from jit_kernels.prefill_indices import prefill_slots
from jit_kernels.sparse_prefill import sparse_prefill
from layers.config import ModelConfig
from layers.forward_batch import ForwardBatch
from layers.fused.prefill_blocks import ChunkBlocks, ChunkIndex, ChunkWindow, chunk_tokens
from layers.fused.prefill_choice import ChunkChoice, QueryHeads
from layers.fused.step import FoldWeights, PoolingWeights
from layers.rope import RopeFrequencies
from layers.step_tokens import StepTokens
from mem_cache.pools import KvPools

__all__ = ["PrefillStep"]


class PrefillStep:
    """One step of chunks over the packed pools; a `FusedStep`.

    The host waits for the device while it is made, and never in its calls: those of a layer are
    launches alone. Its memory is 1,608 bytes for each entry before the blocks (`ChunkWindow`),
    1,024 for each block of the ratio that all rows together have most of, and INDEX_BYTES or less
    for each ratio; a layer that chooses blocks takes SCORES_BYTES besides.
    """

    def __init__(
        self, batch: ForwardBatch, pools: KvPools, config: ModelConfig, rope: RopeFrequencies
    ) -> None:
        """Derive everything that layers share from the batch; `pools` hold packed records."""
        self._batch, self._pools, self._config = batch, pools, config
        spec, tree = pools.spec, pools.spec.tree
        self._tokens = tokens = StepTokens(batch)
        self._chunks = chunk_tokens(tokens)
        ends: list[int] = (batch.chunk_start + batch.chunk_len).tolist()
        ratios = set(config.compress_ratios)
        self._blocks = {
            ratio: ChunkBlocks.of(tokens, ends, ratio=ratio, spec=spec, rope=rope)
            for ratio in sorted(ratios - {0})
        }
        old, *slots = prefill_slots(
            batch.chunk_start,
            batch.chunk_len,
            batch.page_table,
            batch.window,
            window_from=batch.window_from,
            sizes=PageSizes(tree.page_size, tree.swa_page_size, tree.window),
            blocks=tuple(blocks.listed for blocks in self._blocks.values()),
        )
        self._slots = dict(zip(self._blocks, slots, strict=True))
        self._window = ChunkWindow(tokens, pools, old)
        most = max((blocks.listed.count for blocks in self._blocks.values()), default=0)
        self._workspace = torch.empty(
            (self._window.entries + most, spec.head_dim),
            dtype=torch.bfloat16,
            device=tokens.device,
        )
        self._choice = self._choice_of_blocks()
        self._index = {ratio: self._index_of(ratio) for ratio in ratios}
        compressed = {ratio > 0 for ratio in ratios}
        self._rotation = {
            kind: rope.rotation(tokens.position, compressed=kind) for kind in compressed
        }

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        return self._batch.input_ids

    def rotation(self, *, compressed: bool) -> Tensor:
        """Return [T, 2, R] float32; see `FusedStep`."""
        return self._rotation[compressed]

    def store_window(self, layer: int, kv: Tensor, weight: Tensor) -> None:
        """Store the chunks' keys beside those before them; see `FusedStep`."""
        self._window.store(
            layer,
            kv,
            weight=weight,
            rotation=self._rotation[self._config.compress_ratios[layer] > 0],
            eps=self._config.rms_norm_eps,
        )

    def pool(self, layer: int, rows: Tensor, weights: PoolingWeights) -> None:
        """Advance a layer that compresses by 4; see `FusedStep`."""
        pools, blocks, nth = self._pools, self._blocks[4], self._pools.nth(layer)
        pool_chunks(
            rows,
            pools.c4_state[nth],
            ape=weights.ape,
            tokens=self._chunks,
            last=blocks.last,
            ended=blocks.ended,
            saves=blocks.saves,
            main=BlockPages(pools.c4[nth], pools.c4_layout, weights.norm),
            index=BlockPages(pools.indexer[nth], pools.indexer_layout, weights.index_norm),
            eps=self._config.rms_norm_eps,
            record_format=pools.spec.record_format,
        )

    def fold(self, layer: int, rows: Tensor, weights: FoldWeights) -> None:
        """Advance a layer that compresses by 128; see `FusedStep`."""
        pools, blocks, nth = self._pools, self._blocks[128], self._pools.nth(layer)
        fold_chunks(
            rows,
            pools.c128_state[nth],
            ape=weights.ape,
            tokens=self._chunks,
            window_from=self._batch.window_from,
            last=blocks.last,
            ended=blocks.ended,
            saves=blocks.saves,
            pages=BlockPages(pools.c128[nth], pools.c128_layout, weights.norm),
            eps=self._config.rms_norm_eps,
            record_format=pools.spec.record_format,
        )

    def choose(self, layer: int, q: Tensor, weights: Tensor) -> None:
        """Choose blocks where tokens see more than they attend; see `FusedStep`."""
        if self._choice is None:
            return
        pools, (index, _) = self._pools, self._index[4].whole
        self._choice.fill(
            index[:, pools.spec.tree.window :],
            QueryHeads(q, weights, self._rotation[True]),
            pools.indexer[pools.nth(layer)],
            pools.indexer_layout,
        )

    def attend(self, layer: int, q: Tensor, sink: Tensor) -> Tensor:
        """Attend window and blocks, then write what the step saves; see `FusedStep`."""
        ratio = self._config.compress_ratios[layer]
        sets = [self._window.records()]
        if ratio:
            pages, layout = self._pages(layer, ratio)
            sets.append(RecordSet(pages, layout, self._slots[ratio]))
        fill_workspace(self._workspace, sets)
        scale = self._config.head_dim**-0.5
        parts = [
            sparse_prefill(q[part], self._workspace, index, sink=sink, scale=scale, lengths=lengths)
            for part, index, lengths in self._index[ratio].parts()
        ]
        self._window.save(layer)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _pages(self, layer: int, ratio: int) -> tuple[Tensor, PageLayout]:
        """Return a layer's pages of blocks, and their layout."""
        pools, nth = self._pools, self._pools.nth(layer)
        if ratio == 4:
            return pools.c4[nth], pools.c4_layout
        return pools.c128[nth], pools.c128_layout

    def _choice_of_blocks(self) -> ChunkChoice | None:
        """Return who chooses, where some token sees more blocks of 4 than it attends."""
        blocks, top_k = self._blocks.get(4), self._config.index_topk
        if blocks is None or blocks.columns <= top_k:
            return None
        page_size = self._pools.spec.tree.page_size
        first = self._window.entries
        return ChunkChoice(self._tokens, blocks, page_size=page_size, first=first, top_k=top_k)

    def _index_of(self, ratio: int) -> ChunkIndex:
        """Return what tokens attend in the layers of a ratio."""
        window = self._pools.spec.tree.window
        if not ratio:
            return ChunkIndex(self._tokens, window)
        blocks, chosen = self._blocks[ratio], ratio == 4 and self._choice is not None
        return ChunkIndex(
            self._tokens,
            window,
            blocks=blocks.listed,
            columns=self._config.index_topk if chosen else blocks.columns,
            chosen=chosen,
        )
