"""Indexer queries, as the references after each other."""

import torch
import torch.nn.functional as F

from jit_kernels.indexer_keys.reference import hadamard, quantise_queries
from jit_kernels.rope.reference import rope

HEADS = (32, 64)


def indexer_queries(
    q: torch.Tensor, weights: torch.Tensor, rotation: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate, transform and round; see `jit_kernels.indexer_queries.indexer_queries`."""
    heads, width = q.shape[1:]
    turned = rope(q.to(torch.float32, copy=True), rotation, False)
    values, scales = quantise_queries(hadamard(turned))
    weights = weights.to(torch.float32) * scales * (heads * width) ** -0.5
    spare = padded_heads(heads) - heads
    codes = F.pad(values, (0, 0, 0, spare)).to(torch.float8_e4m3fn)
    return codes, F.pad(weights, (0, spare))


def padded_heads(heads: int) -> int:
    """Return the least number of heads that kernels take and that is enough."""
    return min(count for count in HEADS if count >= heads)
