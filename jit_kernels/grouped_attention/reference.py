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
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend; see `jit_kernels.grouped_attention.grouped_attention`."""
    size, heads = keys.shape[1], q.shape[1]
    wide = values.shape[3]
    parts = [q.new_empty((0, heads, wide))]
    since = torch.zeros_like(rows.position) if rows.since is None else rows.since
    counts: list[int] = rows.count.tolist()
    chunks = zip(q.split(counts), since.split(counts), rows.start.tolist(), strict=True)
    for row, (mine, firsts, start) in enumerate(chunks):
        end, low = start + mine.shape[0], int(firsts.min())
        pages = rows.page_table[row, : -(-end // size)].long()
        tiles = -(-end // KEY_TILE)
        held = (_tiles_of(pool, pages, low, end, tiles) for pool in (keys, values))
        both: tuple[torch.Tensor, torch.Tensor] = (next(held), next(held))
        # The logits of a block of tokens, twice, are what takes memory.
        block = max(1, BLOCK_BYTES // (8 * heads * tiles * KEY_TILE))
        for first in range(0, mine.shape[0], block):
            some = mine[first : first + block]
            position = torch.arange(len(some), device=q.device) + (start + first)
            read = (firsts[first : first + block], position)
            parts.append(_block(some, read, *both, scale, sinks)[..., :wide])
    return torch.cat(parts)


def _tiles_of(
    pool: torch.Tensor, pages: torch.Tensor, low: int, end: int, tiles: int
) -> torch.Tensor:
    """Return positions [low, end) of pages, zeros around, as [KH, tiles, KEY_TILE, D] float32."""
    flat = pool.index_select(0, pages).flatten(0, 1)[:end].to(torch.float32)
    # What nobody reads may be no number: 0 times that is none.
    flat = torch.cat((torch.zeros_like(flat[:low]), flat[low:]))
    padded = torch.nn.functional.pad(flat, (0, 0, 0, 0, 0, tiles * KEY_TILE - end))
    return whole_vectors(padded.unflatten(0, (tiles, KEY_TILE)).permute(2, 0, 1, 3))


def _block(
    q: torch.Tensor,
    read: tuple[torch.Tensor, torch.Tensor],
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attend with the tokens of one row, [T, H, D]. Values may be padded.

    read  first and last position that each token reads, both [T]
    """
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
    padding = count * QUERY_TILE - tokens * share

    def by_query(of_tokens: torch.Tensor) -> torch.Tensor:
        every = torch.nn.functional.pad(of_tokens.repeat_interleave(share), (0, padding))
        return every.view(count, 1, QUERY_TILE, 1)

    first, last = map(by_query, read)
    places = torch.arange(tiles * KEY_TILE, device=q.device).view(tiles, 1, KEY_TILE)
    logits = logits.masked_fill((places < first) | (places > last), -torch.inf)
    greatest = logits.amax((2, 4), keepdim=True)
    sink = None
    if sinks is not None:
        every = sinks.view(groups, 1, share).expand(groups, tokens, share).flatten(1)
        sink = torch.nn.functional.pad(every, (0, padding)).view(groups, count, 1, QUERY_TILE, 1)
        greatest = torch.maximum(greatest, sink)
    p = (logits - greatest).exp()
    total = _in_order(p.sum(4, keepdim=True))
    if sink is not None:
        total = total + (sink - greatest).squeeze(2).exp()
    result = _in_order(product(p, values.unsqueeze(1))) / total
    result = result.flatten(1, 2)[:, : tokens * share]
    return result.unflatten(1, (tokens, share)).transpose(0, 1).flatten(1, 2)


def _in_order(parts: torch.Tensor) -> torch.Tensor:
    """Add [KH, count, tiles, ...] tile after tile."""
    result, *others = parts.unbind(2)
    for part in others:
        result = result + part
    return result
