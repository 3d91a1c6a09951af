"""The indexer: which compressed blocks a token attends."""

import torch
from torch import Tensor

from jit_kernels.indexer_keys import decode_keys, encode_keys, hadamard, quantise_queries
from jit_kernels.indexer_logits import indexer_logits
from jit_kernels.paged_rows import gather_rows, store_rows
from jit_kernels.rope import rope
from jit_kernels.select_topk import select_topk
from layers.models.deepseek_v4.config import ModelConfig
from layers.steps.reference.compression_plan import FinishedBlocks, PoolingPlan
from mem_cache.pools import KvPools

__all__ = ["Indexer"]


class Indexer:
    """Stores indexer keys, and scores them for the queries of a step.

    Its projections are stacked with those of the attention (wq_b, weights_proj), its compressor
    with the main one. In fp8 both keys and queries pass a Hadamard transform, which changes no
    product, and are rounded to e4m3 with power-of-two scales.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Keep the sizes."""
        self._heads = config.index_n_heads
        self._width = config.index_head_dim
        self._top_k = config.index_topk

    def store(self, keys: Tensor, finished: FinishedBlocks, pools: KvPools, layer: int) -> None:
        """Encode the keys [m, index_head_dim] of finished blocks and write them to their pages."""
        record_format = pools.spec.record_format
        if record_format == "fp8":
            keys = hadamard(keys)
        rows = encode_keys(keys, record_format=record_format)
        pages = pools.indexer[pools.nth(layer)]
        store_rows(pages, finished.slots, rows, pools.indexer_layout)

    def select(
        self,
        q: Tensor,
        weights: Tensor,
        rotation: Tensor,
        plan: PoolingPlan,
        pools: KvPools,
        *,
        layer: int,
    ) -> Tensor:
        """Return the blocks each token attends, [T, k] int64 ascending, -1 for none.

        q         [T, index_n_heads * index_head_dim] float32; mutated
        weights   [T, index_n_heads] float32
        rotation  [T, 2, R] float32
        """
        record_format, table = pools.spec.record_format, plan.table
        q = rope(q.reshape(-1, self._heads, self._width).contiguous(), rotation)
        weights = weights * (self._heads**-0.5 * self._width**-0.5)
        if record_format == "fp8":
            q, scales = quantise_queries(hadamard(q))
            weights = weights * scales
        elif record_format == "bf16":
            q = q.to(torch.bfloat16).to(torch.float32)
        pages = pools.indexer[pools.nth(layer)]
        rows = gather_rows(pages, table.slots.flatten(), pools.indexer_layout)
        keys = decode_keys(rows, record_format=record_format)
        keys = keys.view(*table.slots.shape, self._width)
        scores = indexer_logits(q, weights, keys, row=table.row, visible=table.visible)
        return select_topk(scores, table.visible, top_k=self._top_k)
