"""Indexer scores in plain torch: products of one token's heads with 64 keys."""

import torch
import torch.nn.functional as F

from jit_kernels.tile_linear.reference import VECTOR, whole_vectors

KEY_TILE = 64
BLOCK_BYTES = 1 << 27


def indexer_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    *,
    row: torch.Tensor,
    visible: torch.Tensor,
) -> torch.Tensor:
    """Score keys; see `jit_kernels.indexer_logits.indexer_logits`."""
    q, keys = whole_vectors(q), whole_vectors(keys)
    weights = F.pad(weights, (0, -weights.shape[1] % VECTOR))
    slots = keys.shape[1]
    block = max(1, BLOCK_BYTES // (4 * max(1, slots) * (q.shape[2] + q.shape[1])))
    parts = zip(q.split(block), weights.split(block), row.split(block), strict=True)
    scores = torch.cat([_block(*part, keys) for part in parts])
    hidden = torch.arange(slots, device=q.device) >= visible.unsqueeze(1)
    return scores.masked_fill(hidden, -torch.inf)


def _block(
    q: torch.Tensor, weights: torch.Tensor, row: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    tokens, heads, width = q.shape
    tiles = keys.shape[1] // KEY_TILE
    mine = keys.index_select(0, row).view(tokens * tiles, KEY_TILE, width)
    # One layout for one token and many: bits depend on how a product's operands lie.
    queries = q.transpose(1, 2).contiguous().unsqueeze(1).expand(tokens, tiles, width, heads)
    products = torch.bmm(mine, queries.reshape(tokens * tiles, width, heads))
    wanted = products.view(tokens, tiles * KEY_TILE, heads).clamp(min=0.0)
    return (wanted * weights.unsqueeze(1)).sum(-1)
