"""Routed experts in plain torch: rows sorted by expert, tiles of 16 rows.

The j-th tiles of all experts that have one make up level j, and a level is one batched product.
A decode step has one level; a long prompt has as many as its busiest expert has tiles.
"""

import torch

from jit_kernels.silu_mul.reference import silu_mul
from jit_kernels.tile_linear.reference import TILE, whole_vectors


def moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    limit: float,
) -> torch.Tensor:
    """Run the chosen experts of each row; see `jit_kernels.moe.moe`."""
    tokens, top_k = experts.shape
    if not tokens:
        return x.new_empty((0, x.shape[1]), dtype=torch.float32)
    flat = experts.flatten()
    members, place = _place(flat, down.shape[0])
    count = sum(level.shape[0] for level in members)
    rows = x.new_zeros((count * TILE, x.shape[1]), dtype=torch.float32)
    token = torch.arange(tokens, device=x.device).repeat_interleave(top_k)
    rows.index_copy_(0, place, x.index_select(0, token).to(torch.float32))
    hidden = silu_mul(_levels(rows, gate_up, members), limit, x.dtype).to(torch.float32)
    outputs = _levels(hidden, down, members).index_select(0, place).view(tokens, top_k, -1)
    result = outputs[:, 0] * weights[:, :1]
    for slot in range(1, top_k):
        result.add_(outputs[:, slot] * weights[:, slot : slot + 1])
    return result


def _place(flat: torch.Tensor, experts: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the experts at work in each level, and the padded row of each chosen expert.

    flat  [P] int64 expert ids
    """
    counts = torch.bincount(flat, minlength=experts)
    tiles = (counts + (TILE - 1)) // TILE
    levels = int(tiles.max())
    at_work = tiles > torch.arange(levels, device=flat.device).unsqueeze(1)
    tile_of = at_work.flatten().cumsum(0) - 1
    order = torch.argsort(flat, stable=True)
    chosen = flat[order]
    rank = torch.arange(flat.shape[0], device=flat.device) - (counts.cumsum(0) - counts)[chosen]
    place = torch.empty_like(order)
    place[order] = tile_of[rank // TILE * experts + chosen] * TILE + rank % TILE
    return [level.nonzero()[:, 0] for level in at_work], place


def _levels(rows: torch.Tensor, weight: torch.Tensor, members: list[torch.Tensor]) -> torch.Tensor:
    """Multiply tiles [tiles * 16, K] by their experts' weights [E, N, K], level by level."""
    experts, columns, _ = weight.shape
    padded = whole_vectors(rows)
    result = rows.new_empty((rows.shape[0], columns))
    first = 0
    for level in members:
        last = first + level.shape[0] * TILE
        # All experts at work: their weights are read where they lie.
        mine = weight if level.shape[0] == experts else weight.index_select(0, level)
        tiles = padded[first:last].view(-1, TILE, padded.shape[1])
        product = torch.bmm(tiles, whole_vectors(mine).transpose(1, 2))
        result[first:last] = product.flatten(0, 1)[:, :columns]
        first = last
    return result
