"""The indexer: which compressed blocks a token attends.

In fp8 both keys and queries pass a Hadamard transform, which changes no product, and are rounded to
e4m3 with power-of-two scales.
"""

import torch
from torch import Tensor

from jit_kernels.indexer_keys import decode_keys, encode_keys, hadamard, quantise_queries
from jit_kernels.indexer_logits import indexer_logits
from jit_kernels.paged_rows import gather_rows, store_rows
from jit_kernels.rope import rope
from jit_kernels.select_topk import select_topk
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.reference.compression_plan import BlockTable, FinishedBlocks

__all__ = ["choose_blocks", "store_keys"]


def store_keys(keys: Tensor, finished: FinishedBlocks, pools: KvPools, layer: int) -> None:
    """Encode the keys [m, C] float32 of finished blocks and write them to their pages."""
    record_format = pools.spec.record_format
    if record_format == "fp8":
        keys = hadamard(keys)
    rows = encode_keys(keys, record_format=record_format)
    store_rows(pools.indexer[pools.nth(layer)], finished.slots, rows, pools.indexer_layout)


def choose_blocks(
    q: Tensor,
    weights: Tensor,
    rotation: Tensor,
    table: BlockTable,
    pools: KvPools,
    *,
    layer: int,
    top_k: int,
) -> Tensor:
    """Return the blocks each token attends, [T, k] int64 ascending, -1 for none.

    q         [T, Hi, C] float32 or bfloat16, before rotation
    weights   [T, Hi] float32
    rotation  [T, 2, R] float32
    table     blocks that may be seen
    """
    record_format, (heads, width) = pools.spec.record_format, q.shape[1:]
    # Turned in place: the copy is the caller's no more.
    q = rope(q.to(torch.float32, copy=True, memory_format=torch.contiguous_format), rotation)
    weights = weights * (heads**-0.5 * width**-0.5)
    if record_format == "fp8":
        q, scales = quantise_queries(hadamard(q))
        weights = weights * scales
    elif record_format == "bf16":
        q = q.to(torch.bfloat16).to(torch.float32)
    rows = gather_rows(pools.indexer[pools.nth(layer)], table.slots.flatten(), pools.indexer_layout)
    keys = decode_keys(rows, record_format=record_format).view(*table.slots.shape, width)
    scores = indexer_logits(q, weights, keys, row=table.row, visible=table.visible)
    return select_topk(scores, table.visible, top_k=top_k)
