"""Attention over packed latent records by FlashMLA's sparse kernel for Hopper.

It takes 64 or 128 heads; others are padded by queries of zeros. A call keeps float32 sums of all
its tokens, 256 KiB each for 128 heads: many tokens make several calls. The kernel reads all columns
of `slots`: for records of 656 bytes it does not look at lengths. FlashMLA's own scheduler divides
tiles evenly among the processors, so that a token's bits depend on its company; the fixed plan
gives each token to one processor. Source: flash_mla 1.0.0, `flash_mla_with_kvcache` with
`use_legacy`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from flash_mla import flash_mla_with_kvcache, get_mla_metadata

from jit_kernels.paged_attention.flash_mla_backend import fixed_schedule, processors_of
from jit_kernels.paged_attention.triton_heads import pad_queries

if TYPE_CHECKING:
    from jit_kernels.paged_sparse import SparsePlan

_KEY_TILE, _LATENT = 64, 512
# Tokens of a call.
_MOST_TOKENS = 1024


def paged_sparse(
    q: torch.Tensor,
    records: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
    plan: "SparsePlan",
    invariant: bool,
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_sparse.paged_sparse`."""
    tokens, heads = q.shape[0], q.shape[1]
    if not q.numel():
        return torch.empty((tokens, heads, _LATENT), dtype=q.dtype, device=q.device)
    parts = [
        _attended(q[part], records, slots[part], scale, plan, invariant) for part in _parts(tokens)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attended(
    q: torch.Tensor,
    records: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
    plan: "SparsePlan",
    invariant: bool,
) -> torch.Tensor:
    """Return what the tokens of a call read, [t, H, 512] contiguous."""
    heads, padded = q.shape[1], pad_queries(q)
    out, _ = flash_mla_with_kvcache(
        padded.unsqueeze(1),
        records.unsqueeze(2),
        block_table=None,
        cache_seqlens=None,
        head_dim_v=_LATENT,
        tile_scheduler_metadata=_schedule(plan, padded, slots, invariant=invariant),
        softmax_scale=scale,
        is_fp8_kvcache=True,
        indices=slots.unsqueeze(1),
        use_legacy=True,
    )
    return out[:, 0, :heads].contiguous()


def _schedule(plan: "SparsePlan", q: torch.Tensor, slots: torch.Tensor, *, invariant: bool) -> Any:
    """Return FlashMLA's schedule of so many tokens, whose keys have one number of tiles."""
    shape = (*slots.shape, invariant)
    schedule = plan.held.get(shape)
    if schedule is None:
        schedule = plan.held[shape] = get_mla_metadata()[0]
        if invariant:
            tiles = torch.full((slots.shape[0],), slots.shape[1] // _KEY_TILE, device=q.device)
            records, splits = fixed_schedule(tiles, processors_of(q.device, q.shape[1]))
            schedule.tile_scheduler_metadata, schedule.num_splits = records, splits
    return schedule


def _parts(tokens: int) -> Iterator[slice]:
    for first in range(0, tokens, _MOST_TOKENS):
        yield slice(first, min(tokens, first + _MOST_TOKENS))
