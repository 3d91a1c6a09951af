"""Routed experts in plain torch: rows sorted by expert, tiles of 16 rows."""

import torch

from jit_kernels.silu_mul.reference import silu_mul
from jit_kernels.tile_linear.reference import tile_linear


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
    flat = experts.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=down.shape[0]).tolist()
    rows = x.index_select(0, order // top_k)
    parts: list[torch.Tensor] = []
    first = 0
    for expert, count in enumerate(counts):
        if count:
            tile = rows[first : first + count]
            hidden = silu_mul(tile_linear(tile, gate_up[expert], torch.float32), limit, x.dtype)
            parts.append(tile_linear(hidden, down[expert], torch.float32))
            first += count
    outputs = x.new_empty((tokens * top_k, x.shape[1]), dtype=torch.float32)
    if parts:
        outputs.index_copy_(0, order, torch.cat(parts))
    by_slot = outputs.view(tokens, top_k, -1)
    result = by_slot[:, 0] * weights[:, :1]
    for slot in range(1, top_k):
        result.add_(by_slot[:, slot] * weights[:, slot : slot + 1])
    return result
