"""Indexer keys and queries whose first channels turn, as the references after each other."""

import torch
import torch.nn.functional as F

from jit_kernels.indexer_keys.reference import encode_keys, hadamard, quantise_queries
from jit_kernels.indexer_queries.reference import padded_heads
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_rows.reference import store_rows
from jit_kernels.rope.reference import rotated
from jit_kernels.rope_halves.reference import rope_halves


def store_index_keys(
    pages: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    rotation: torch.Tensor,
    layout: PageLayout,
    halves: bool,
) -> None:
    """Turn, transform, round and store; see `jit_kernels.sparse_index.store_index_keys`."""
    turned = _turned(keys.unsqueeze(1), rotation, halves).squeeze(1)
    store_rows(pages, slots, encode_keys(hadamard(turned), "fp8"), layout)


def index_queries(
    q: torch.Tensor, weights: torch.Tensor, rotation: torch.Tensor, halves: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn, transform and round; see `jit_kernels.sparse_index.index_queries`."""
    values, scales = quantise_queries(hadamard(_turned(q, rotation, halves)))
    spare = padded_heads(q.shape[1]) - q.shape[1]
    codes = F.pad(values, (0, 0, 0, spare)).to(torch.float8_e4m3fn)
    return codes, F.pad(weights * scales, (0, spare))


def _turned(x: torch.Tensor, rotation: torch.Tensor, halves: bool) -> torch.Tensor:
    """Return `x` [T, H, C] with its first channels turned."""
    turned = rotation.shape[2] * (2 if halves else 1)
    first, rest = x.split([turned, x.shape[2] - turned], 2)
    if halves:
        first = rope_halves(first.clone(memory_format=torch.contiguous_format), rotation)
    else:
        first = rotated(first, rotation)
    return torch.cat((first, rest), 2)
