"""Attention over packed records in plain torch, token by token."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.latent_records.reference import decode_latents
from jit_kernels.paged_attention.reference import attend

if TYPE_CHECKING:
    from jit_kernels.paged_sparse import SparsePlan

_LATENT = 512


def paged_sparse(
    q: torch.Tensor,
    records: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
    plan: "SparsePlan",
    invariant: bool,
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_sparse.paged_sparse`. It is invariant in any case."""
    del plan, invariant
    named = slots >= 0
    found, places = slots[named].to(torch.int64).unique(return_inverse=True)
    width = q.shape[2]
    numbers = decode_latents(records.flatten(0, 1)[found], "fp8", width, width - _LATENT)
    out = torch.empty((*q.shape[:2], _LATENT), dtype=q.dtype, device=q.device)
    none = torch.full((q.shape[1],), -torch.inf, device=q.device)
    for token, place in enumerate(places.split(named.sum(1).tolist())):
        out[token] = attend(q[token].float(), numbers[place], none, scale)[:, :_LATENT]
    return out
