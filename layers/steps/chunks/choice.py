"""Which blocks of 4 the tokens of chunks attend: the indexer over whole chunks."""

from dataclasses import dataclass

from torch import Tensor

from jit_kernels.chunk_logits import chunk_logits, gather_key_pages
from jit_kernels.indexer_queries import indexer_queries
from jit_kernels.paged_logits import row_slices
from jit_kernels.paged_rows import PageLayout
from jit_kernels.select_topk import select_topk
from jit_kernels.translate_blocks import place_blocks
from layers.steps.chunks.blocks import ChunkBlocks
from layers.steps.chunks.plan import ChunkPlan, KeyPages

__all__ = ["SCORES_BYTES", "ChunkChoice", "QueryHeads"]

# Scores of the tokens that are scored at a time; a chunk of 8,192 tokens is one such slice up to a
# context of 64k.
SCORES_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class QueryHeads:
    """Indexer queries of T tokens.

    q         [T, Hi, C] float32 or bfloat16, before rotation
    weights   [T, Hi] of the heads
    rotation  [T, 2, R] float32
    """

    q: Tensor
    weights: Tensor
    rotation: Tensor


class ChunkChoice:
    """Scores the blocks of 4 that tokens see, and lists the best of them for attention."""

    def __init__(
        self, plan: ChunkPlan, blocks: ChunkBlocks, keys: KeyPages, *, first: int, top_k: int
    ) -> None:
        """Derive from a step what its layers share.

        first  entry of the workspace where the listed blocks begin
        """
        self._row, self._top_k, self._columns = plan.row, top_k, blocks.columns
        self._base = blocks.listed.base + first
        self._pages, self._visible = keys.pages, keys.visible
        self._start, self._end = keys.start, keys.end

    def fill(self, out: Tensor, heads: QueryHeads, keys: Tensor, layout: PageLayout) -> None:
        """Write the entries of each token's best blocks, in ascending order, then -1.

        out   [T, K] int32, K at least top_k; may be part of wider rows
        keys  [U, layout.page_bytes] uint8, a layer's indexer keys
        """
        q, weights = indexer_queries(heads.q, heads.weights, heads.rotation)
        gathered = gather_key_pages(keys, self._pages, layout)
        tokens = q.shape[0]
        for part in row_slices(tokens, self._columns, workspace_bytes=SCORES_BYTES):
            scores = chunk_logits(
                q[part],
                weights[part],
                gathered,
                start=self._start[part],
                end=self._end[part],
                columns=self._columns,
            )
            best = select_topk(scores, self._visible[part], top_k=self._top_k)
            place_blocks(best, self._base, out[part], row=self._row[part])
