"""A step of chunks: where their tokens read and write, made once for all layers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from jit_kernels.compress_fold import fold_chunks
from jit_kernels.compress_pool import BlockPages, pool_chunks
from jit_kernels.decode_indices import PageSizes
from jit_kernels.prefill_indices import prefill_slots
from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.chunks.blocks import ChunkBlocks, ChunkWindow, chunk_tokens
from layers.steps.chunks.choice import QueryHeads
from layers.steps.chunks.plan import ChunkPlan, plan_chunks
from layers.steps.chunks.rows import ChunkRows
from layers.steps.chunks.workspace import ChunkWorkspace
from layers.steps.contract import FoldWeights, PoolingWeights, StepSizes
from layers.steps.forward_batch import ForwardBatch, finite_rows

__all__ = ["PrefillStep"]


class PrefillStep:
    """One step of chunks over the packed pools; a `Step`.

    The host waits for the device neither while it is made nor in its calls. Its memory is 1,608
    bytes for each entry before the blocks (`ChunkWindow`), 1,024 for each block of the ratio that
    all rows together have most of, and INDEX_BYTES or less for each ratio; a layer that chooses
    blocks takes SCORES_BYTES besides. A deterministic step takes 584 bytes for each entry before
    the blocks, 4 for each block that a token may choose, and SCORES_BYTES.
    """

    def __init__(
        self,
        batch: ForwardBatch,
        pools: KvPools,
        sizes: StepSizes,
        rope: RopeFrequencies,
        *,
        deterministic: bool = False,
    ) -> None:
        """Derive everything that layers share from the batch; `pools` hold packed records.

        batch          in host memory, as `plan_chunks` takes it
        deterministic  what a token attends has the same bits in any chunk, and when decoded
        """
        self._pools, self._sizes, tree = pools, sizes, pools.spec.tree
        self._plan = plan = plan_chunks(
            batch,
            pools.spec,
            live=pools.sizes.live_states,
            top_k=sizes.top_k,
            device=pools.swa.device,
        )
        self._chunks = chunk_tokens(plan)
        self._rotation, turned = _rotations(plan, pools.spec.layer_ratios, rope)
        self._blocks = {
            ratio: ChunkBlocks.of(part, ratio, turned[ratio]) for ratio, part in plan.blocks.items()
        }
        old, *slots = prefill_slots(
            plan.chunk_start,
            plan.chunk_len,
            plan.page_table,
            plan.window,
            window_from=plan.window_from,
            sizes=PageSizes(tree.page_size, tree.swa_page_size, tree.window),
            blocks=tuple(blocks.listed for blocks in self._blocks.values()),
        )
        self._window = window = ChunkWindow(plan, pools, old)
        self._heads: QueryHeads | None = None
        self._reader: ChunkRows | ChunkWorkspace
        if deterministic:
            self._reader = ChunkRows(plan, window, self._blocks, pools=pools, top_k=sizes.top_k)
        else:
            held = dict(zip(self._blocks, slots, strict=True))
            self._reader = ChunkWorkspace(
                plan, window, self._blocks, slots=held, pools=pools, top_k=sizes.top_k
            )

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        return self._plan.input_ids

    @property
    def logit_tokens(self) -> Tensor:
        """Return which of the tokens logits are wanted of, [k] int64."""
        return self._plan.logit_tokens

    def finite_rows(self, tokens: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool.

        tokens  [T] bool   finite or not
        """
        return finite_rows(tokens, self._plan.row, self._plan.chunk_len)

    def rotation(self, *, compressed: bool) -> Tensor:
        """Return [T, 2, R] float32; see `Step`."""
        return self._rotation[compressed]

    def store_window(self, layer: int, kv: Tensor, weight: Tensor) -> None:
        """Store the chunks' keys beside those before them; see `Step`."""
        self._window.store(
            layer,
            kv,
            weight=weight,
            rotation=self._rotation[self._pools.spec.layer_ratios[layer] > 0],
            eps=self._sizes.eps,
        )

    def pool(self, layer: int, rows: Tensor, weights: PoolingWeights) -> None:
        """Advance a layer that compresses by 4; see `Step`."""
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
            eps=self._sizes.eps,
            record_format=pools.spec.record_format,
        )

    def fold(self, layer: int, rows: Tensor, weights: FoldWeights) -> None:
        """Advance a layer that compresses by 128; see `Step`."""
        pools, blocks, nth = self._pools, self._blocks[128], self._pools.nth(layer)
        fold_chunks(
            rows,
            pools.c128_state[nth],
            ape=weights.ape,
            tokens=self._chunks,
            window_from=self._plan.window_from,
            last=blocks.last,
            ended=blocks.ended,
            saves=blocks.saves,
            pages=BlockPages(pools.c128[nth], pools.c128_layout, weights.norm),
            eps=self._sizes.eps,
            record_format=pools.spec.record_format,
        )

    def score(self, layer: int, q: Tensor, weights: Tensor) -> None:
        """Take the queries: scores of all tokens are too many to be kept; see `Step`."""
        self._heads = QueryHeads(q, weights, self._rotation[True])

    def choose(self, layer: int) -> None:
        """Score and choose blocks where tokens see more than they attend; see `Step`."""
        if self._heads is not None:
            self._reader.choose(layer, self._heads)
        self._heads = None

    def attend(self, layer: int, q: Tensor, sink: Tensor) -> Tensor:
        """Attend window and blocks, then write what the step saves; see `Step`."""
        out = self._reader.attend(layer, q, sink)
        self._window.save(layer)
        return out


def _rotations(
    plan: ChunkPlan, ratios: Sequence[int], rope: RopeFrequencies
) -> tuple[dict[bool, Tensor], dict[int, Tensor]]:
    """Return those of all tokens in layers without and with compression, and by ratio of blocks.

    Each kind is computed at once: it takes a handful of launches, however many positions there are.
    """
    firsts = [part.first for part in plan.blocks.values()]
    positions = torch.cat([plan.position, *firsts]) if firsts else plan.position
    tokens, *turned = rope.rotation(positions, compressed=True).split(
        [plan.count, *(len(first) for first in firsts)]
    )
    rotation = {True: tokens}
    if 0 in ratios:
        rotation[False] = rope.rotation(plan.position, compressed=False)
    return rotation, dict(zip(plan.blocks, turned, strict=True))
