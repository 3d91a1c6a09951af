"""Indexer scores in plain torch: products of one token's heads with 64 keys."""

import torch
import torch.nn.functional as F

from jit_kernels.tile_linear.reference import VECTOR, whole_vectors

TILE = 64
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
    tokens, heads, width = q.shape
    slots = keys.shape[1]
    result = q.new_empty((tokens, slots))
    block = max(1, BLOCK_BYTES // (4 * max(1, slots) * (width + heads)))
    seen = visible.tolist()
    for first in range(0, tokens, block):
        part = slice(first, min(first + block, tokens))
        # Key tiles beyond what this block of tokens sees would only be masked below.
        used = -(-max(seen[part]) // TILE) * TILE
        result[part, used:] = -torch.inf
        if used:
            result[part, :used] = _block(q[part], weights[part], keys[:, :used], row[part])
    hidden = torch.arange(slots, device=q.device) >= visible.unsqueeze(1)
    return result.masked_fill_(hidden, -torch.inf)


def _block(
    q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, row: torch.Tensor
) -> torch.Tensor:
    tokens, heads, width = q.shape
    tiles = keys.shape[1] // TILE
    if bool(row[0] == row[-1]):
        # One row: its key tiles are shared by all tokens, one tile after the other.
        queries = q.transpose(1, 2).contiguous()
        shared = keys[int(row[0])].view(tiles, 1, TILE, width).expand(-1, tokens, -1, -1)
        return torch.cat([_weigh(torch.bmm(tile, queries), weights) for tile in shared], 1)
    mine = keys.index_select(0, row).view(tokens * tiles, TILE, width)
    queries = q.transpose(1, 2).unsqueeze(1).expand(tokens, tiles, width, heads)
    scores = torch.bmm(mine, queries.reshape(tokens * tiles, width, heads))
    return _weigh(scores.view(tokens, tiles * TILE, heads), weights)


def _weigh(scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return [T, keys] from [T, keys, H] products, which are overwritten."""
    return scores.clamp_(min=0.0).mul_(weights.unsqueeze(1)).sum(-1)
