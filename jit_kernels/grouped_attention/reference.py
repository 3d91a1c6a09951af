"""Attention in plain torch: products of 16 queries with 64 keys, tiles added in order.

Products of one shape give a query the same bits in any batch and from any memory. Tiles of keys
behind a token's position have a weight of 0 and change nothing.
"""

from typing import TYPE_CHECKING

import torch

from jit_kernels.tile_linear.reference import whole_vectors

if TYPE_CHECKING:
    from jit_kernels.grouped_attention import ChunkRows

KEY_TILE = 64
QUERY_TILE = 16
BLOCK_BYTES = 1 << 27


def grouped_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: "ChunkRows",
    scale: float,
) -> torch.Tensor:
    """Attend; see `jit_kernels.grouped_attention.grouped_attention`."""
    size, heads = keys.shape[1], q.shape[1]
    wide = values.shape[3]
    parts = [q.new_empty((0, heads, wide))]
    chunks = zip(q.split(rows.count.tolist()), rows.start.tolist(), strict=True)
    for row, (mine, start) in enumerate(chunks):
        end = start + mine.shape[0]
        pages = rows.page_table[row, : -(-end // size)].long()
        tiles = -(-end // KEY_TILE)
        held = (_tiles_of(pool, pages, end, tiles) for pool in (keys, values))
        both: tuple[torch.Tensor, torch.Tensor] = (next(held), next(held))
        # The logits of a block of tokens, twice, are what takes memory.
        block = max(1, BLOCK_BYTES // (8 * heads * tiles * KEY_TILE))
        for first in range(0, mine.shape[0], block):
            some = mine[first : first + block]
            position = torch.arange(len(some), device=q.device) + (start + first)
            parts.append(_block(some, position, *both, scale)[..., :wide])
    return torch.cat(parts)


def _tiles_of(pool: torch.Tensor, pages: torch.Tensor, end: int, tiles: int) -> torch.Tensor:
    """Return the first `end` positions of pages as [KH, tiles, KEY_TILE, D] float32."""
    flat = pool.index_select(0, pages).flatten(0, 1)[:end].to(torch.float32)
    padded = torch.nn.functional.pad(flat, (0, 0, 0, 0, 0, tiles * KEY_TILE - end))
    return whole_vectors(padded.unflatten(0, (tiles, KEY_TILE)).permute(2, 0, 1, 3))


def _block(
    q: torch.Tensor,
    position: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attend with the tokens of one row, [T, H, D]; `position` is [T]. Values may be padded."""
    tokens, heads, _ = q.shape
    groups, tiles = keys.shape[:2]
    share = heads // groups
    # [KH, T * share, D], then tiles of 16 queries.
    grouped = q.unflatten(1, (groups, share)).transpose(0, 1).flatten(1, 2)
    queries = whole_vectors(grouped, QUERY_TILE).unflatten(1, (-1, 1, QUERY_TILE))
    count = queries.shape[1]

    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        shape = (groups, count, tiles)
        pairs = (x.expand(*shape, *x.shape[-2:]).flatten(0, 2) for x in (left, right))
        return torch.bmm(*pairs).unflatten(0, shape)

    logits = product(queries, keys.unsqueeze(1).transpose(3, 4)) * scale
    seen = position.repeat_interleave(share)
    seen = torch.nn.functional.pad(seen, (0, count * QUERY_TILE - len(seen)))
    places = torch.arange(tiles * KEY_TILE, device=q.device).view(tiles, 1, KEY_TILE)
    logits = logits.masked_fill(places > seen.view(count, 1, QUERY_TILE, 1), -torch.inf)
    p = (logits - logits.amax((2, 4), keepdim=True)).exp()
    total = _in_order(p.sum(4, keepdim=True))
    result = _in_order(product(p, values.unsqueeze(1))) / total
    result = result.flatten(1, 2)[:, : tokens * share]
    return result.unflatten(1, (tokens, share)).transpose(0, 1).flatten(1, 2)


def _in_order(parts: torch.Tensor) -> torch.Tensor:
    """Add [KH, count, tiles, ...] tile after tile."""
    result, *others = parts.unbind(2)
    for part in others:
        result = result + part
    return result
