"""Attention in plain torch: products of 8 n heads with 64 keys, tiles added in order."""

import torch
import torch.nn.functional as F

TILE = 64
HEAD_TILE = 8
BLOCK_BYTES = 1 << 27


def sparse_attention(
    q: torch.Tensor, keys: torch.Tensor, index: torch.Tensor, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend; see `jit_kernels.sparse_attention.sparse_attention`."""
    tokens, heads, width = q.shape
    spare = -heads % HEAD_TILE
    wide = F.pad(q.to(torch.float32), (0, 0, 0, spare))
    sinks = F.pad(sink, (0, spare)).unsqueeze(1)
    result = torch.empty_like(q)
    # The gathered keys, the repeated queries and the products per tile are held at once.
    per_tile = 4 * width * (TILE + 3 * (heads + spare))
    block = max(1, BLOCK_BYTES // (per_tile * max(1, index.shape[1] // TILE)))
    for first in range(0, tokens, block):
        part = slice(first, first + block)
        result[part] = _block(wide[part], keys, index[part], sinks, scale)[:, :heads]
    return result


def _block(
    q: torch.Tensor, keys: torch.Tensor, index: torch.Tensor, sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    tokens, heads, width = q.shape
    tiled = index.view(tokens, -1, TILE)
    if tokens > 1:
        named = (tiled != 0).any(2).any(0)
        tiled = tiled[:, named]
    tiles = tiled.shape[1]
    mine = keys.index_select(0, tiled.flatten()).view(tokens * tiles, TILE, width)
    queries = q.unsqueeze(1).expand(tokens, tiles, heads, width).reshape(-1, heads, width)
    logits = torch.bmm(queries, mine.transpose(1, 2)).mul_(scale).view(tokens, tiles, heads, TILE)
    logits.masked_fill_((tiled == 0).unsqueeze(2), -torch.inf)
    greatest = torch.maximum(logits.amax(3, keepdim=True).amax(1, keepdim=True), sinks)
    p = logits.sub_(greatest).exp_()
    values = torch.bmm(p.view(-1, heads, TILE), mine).view(tokens, tiles, heads, width)
    sums = p.sum(3, keepdim=True)
    total, result = sums[:, 0], values[:, 0]
    for tile in range(1, tiles):
        total = total + sums[:, tile]
        result = result + values[:, tile]
    return result / (total + (sinks - greatest[:, 0]).exp_())
