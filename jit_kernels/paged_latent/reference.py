"""Attention over latent records in plain torch: that of grouped heads, with one head of keys."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.paged_gqa.reference import paged_gqa

if TYPE_CHECKING:
    from jit_kernels.paged_gqa import PagedRows
    from jit_kernels.paged_latent import LatentPlan


def paged_latent(
    q: torch.Tensor,
    records: torch.Tensor,
    rows: "PagedRows",
    values: int,
    scale: float,
    plan: "LatentPlan | None",
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_latent.paged_latent`. It is invariant in any case."""
    del plan
    keys = records.unsqueeze(2)
    read = paged_gqa(q, keys, keys, rows, scale, 0, None, invariant=True)
    return read[..., :values].contiguous()
