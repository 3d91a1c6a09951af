"""Attention in plain torch: products of 8 n heads with 64 keys, tiles added in order.

Products of one shape give a token the same bits in any batch and from any memory, so few tokens
fetch all their keys at once, and many tokens look tile by tile at keys that they share.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from jit_kernels.tile_linear.reference import whole_vectors

TILE = 64
HEAD_TILE = 8
MANY_TOKENS = 24
BLOCK_BYTES = 1 << 27


def sparse_attention(
    q: torch.Tensor, keys: torch.Tensor, index: torch.Tensor, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend; see `jit_kernels.sparse_attention.sparse_attention`."""
    tokens, heads, width = q.shape
    spare = -heads % HEAD_TILE
    wide = whole_vectors(q, HEAD_TILE)
    if wide.shape[2] != width:
        keys = F.pad(keys, (0, wide.shape[2] - width))
    sinks = F.pad(sink, (0, spare)).view(1, -1, 1)
    result = torch.empty_like(q)
    # The keys of a tile, the queries and the tile's result are held for every tile at once.
    per_tile = 4 * width * (TILE + 2 * (heads + spare))
    block = max(1, BLOCK_BYTES // (per_tile * max(1, index.shape[1] // TILE)))
    for first in range(0, tokens, block):
        part = slice(first, first + block)
        result[part] = _block(wide[part], keys, index[part], sinks, scale)[:, :heads, :width]
    return result


def _block(
    q: torch.Tensor, keys: torch.Tensor, index: torch.Tensor, sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    tokens = q.shape[0]
    tiled = index.view(tokens, -1, TILE)
    if tokens > 1:
        tiled = tiled[:, (tiled != 0).any(2).any(0)]
    many = tokens >= MANY_TOKENS
    mine = [_shared(keys, tile) for tile in tiled.unbind(1)] if many else _fetch(keys, tiled)
    logits = _logits(q, mine).mul_(scale)
    logits.masked_fill_((tiled == 0).unsqueeze(2), -torch.inf)
    greatest = torch.maximum(logits.amax((1, 3)).unsqueeze(2), sinks)
    p = logits.sub_(greatest.unsqueeze(1)).exp_()
    total, result = _in_order(p.sum(3, keepdim=True).unbind(1)), _values(p, mine)
    return result / (total + (sinks - greatest).exp_())


def _fetch(keys: torch.Tensor, tiled: torch.Tensor) -> torch.Tensor:
    """Return the keys of [T, tiles, 64] indices as [T, tiles, 64, D]."""
    return keys.index_select(0, tiled.flatten()).view(*tiled.shape, keys.shape[1])


def _shared(keys: torch.Tensor, tile: torch.Tensor) -> torch.Tensor:
    """Return the keys of [T, 64] indices as [T, 64, D], without a copy where tokens share them."""
    tokens, width = tile.shape[0], keys.shape[1]
    greatest = tile.amax(0)
    if bool(((tile == greatest) | (tile == 0)).all()):
        # Every token names the same keys, or none: a hidden key has weight zero, if it is finite.
        same = keys.index_select(0, greatest)
        if bool(same.isfinite().all()):
            return same.expand(tokens, TILE, width)
    steps = torch.arange(TILE, device=tile.device)
    first = int(tile[0, 0])
    if torch.equal(tile, first + steps + torch.arange(tokens, device=tile.device).unsqueeze(1)):
        # Windows that slide by one key a token.
        return keys.as_strided(
            (tokens, TILE, width), (width, width, 1), keys.storage_offset() + first * width
        )
    return keys.index_select(0, tile.flatten()).view(tokens, TILE, width)


def _logits(q: torch.Tensor, mine: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Return [T, tiles, H, 64] products of queries and keys."""
    tokens, heads, width = q.shape
    if isinstance(mine, torch.Tensor):
        tiles = mine.shape[1]
        queries = q.unsqueeze(1).expand(tokens, tiles, heads, width).reshape(-1, heads, width)
        flat = torch.bmm(queries, mine.view(-1, TILE, width).transpose(1, 2))
        return flat.view(tokens, tiles, heads, TILE)
    return torch.stack([torch.bmm(q, tile.transpose(1, 2)) for tile in mine], 1)


def _values(p: torch.Tensor, mine: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Return [T, H, D], the tiles' weighted keys added in order."""
    tokens, tiles, heads, _ = p.shape
    if isinstance(mine, torch.Tensor):
        width = mine.shape[3]
        flat = torch.bmm(p.view(-1, heads, TILE), mine.view(-1, TILE, width))
        return _in_order(flat.view(tokens, tiles, heads, width).unbind(1))
    return _in_order([torch.bmm(p[:, i], tile) for i, tile in enumerate(mine)])


def _in_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result
