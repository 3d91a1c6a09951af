"""Attention in plain torch: products of 8 n heads with 64 keys, tiles added in order.

Products of one shape give a token the same bits in any batch and from any memory.
"""

import torch
import torch.nn.functional as F

from jit_kernels.tile_linear.reference import whole_vectors

KEY_TILE = 64
HEAD_TILE = 8
BLOCK_BYTES = 1 << 27


def sparse_attention(
    q: torch.Tensor, keys: torch.Tensor, index: torch.Tensor, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend; see `jit_kernels.sparse_attention.sparse_attention`."""
    _, heads, width = q.shape
    wide = whole_vectors(q, HEAD_TILE)
    if wide.shape[2] != width:
        keys = F.pad(keys, (0, wide.shape[2] - width))
    sinks = F.pad(sink, (0, wide.shape[1] - heads)).view(1, -1, 1)
    # The keys of every tile, and each tile's copy of the queries and part of the result.
    per_token = 4 * wide.shape[2] * (KEY_TILE + 2 * wide.shape[1]) * (index.shape[1] // KEY_TILE)
    block = max(1, BLOCK_BYTES // max(1, per_token))
    parts = zip(wide.split(block), index.split(block), strict=True)
    result = torch.cat([_block(*part, keys, sinks, scale) for part in parts])
    return result[:, :heads, :width].to(q.dtype)


def _block(
    q: torch.Tensor, index: torch.Tensor, keys: torch.Tensor, sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    tokens, heads, width = q.shape
    tiles = index.shape[1] // KEY_TILE
    mine = keys.index_select(0, index.flatten()).view(-1, KEY_TILE, width)
    queries = q.unsqueeze(1).expand(tokens, tiles, heads, width).reshape(-1, heads, width)
    logits = torch.bmm(queries, mine.transpose(1, 2)).view(tokens, tiles, heads, KEY_TILE) * scale
    logits = logits.masked_fill((index == 0).view(tokens, tiles, 1, KEY_TILE), -torch.inf)
    greatest = torch.maximum(logits.amax((1, 3)).unsqueeze(2), sinks)
    p = (logits - greatest.unsqueeze(1)).exp()
    values = torch.bmm(p.view(-1, heads, KEY_TILE), mine).view(tokens, tiles, heads, width)
    total = _in_order(p.sum(3, keepdim=True)) + (sinks - greatest).exp()
    return _in_order(values) / total


def _in_order(parts: torch.Tensor) -> torch.Tensor:
    """Add [T, tiles, ...] tile after tile."""
    result, *others = parts.unbind(1)
    for part in others:
        result = result + part
    return result
