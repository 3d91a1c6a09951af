"""Latent attention in C: that of grouped heads, whose values are the beginnings of the keys."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.grouped_attention.host import attention

if TYPE_CHECKING:
    from jit_kernels.grouped_attention import ChunkRows


def latent_attention(
    q: torch.Tensor, records: torch.Tensor, rows: "ChunkRows", values: int, scale: float
) -> torch.Tensor:
    """Attend; see `jit_kernels.latent_attention.latent_attention`."""
    keys = records.unsqueeze(2)
    return attention(q, keys, keys, rows, scale, wide=values, apart=records.shape[2])
