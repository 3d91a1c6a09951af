"""Latent attention in plain torch: that of grouped heads, with one head of keys."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.grouped_attention.reference import grouped_attention

if TYPE_CHECKING:
    from jit_kernels.grouped_attention import ChunkRows


def latent_attention(
    q: torch.Tensor, records: torch.Tensor, rows: "ChunkRows", values: int, scale: float
) -> torch.Tensor:
    """Attend; see `jit_kernels.latent_attention.latent_attention`."""
    keys = records.unsqueeze(2)
    return grouped_attention(q, keys, keys[..., :values], rows, scale)
