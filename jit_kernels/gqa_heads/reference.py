"""Heads in plain torch, one step after the other."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.rms_norm.reference import rms_norm
from jit_kernels.rope_halves.reference import rope_halves

if TYPE_CHECKING:
    from jit_kernels.gqa_heads import HeadWeights

# bfloat16 rounds the largest of float32 to infinity.
_LARGEST = 3.38e38


def gqa_heads(
    made: torch.Tensor,
    rotation: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    weights: "HeadWeights",
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Make heads; see `jit_kernels.gqa_heads.gqa_heads`."""
    groups, width = keys.shape[2:]
    if weights.bias is not None:
        made = made + weights.bias
    every = made.unflatten(1, (-1, width))
    q, k, v = every.split([every.shape[1] - 2 * groups, groups, groups], 1)
    if weights.norms is not None:
        q, k = (
            rms_norm(x, weight, weights.eps, torch.float32)
            for x, weight in zip((q, k), weights.norms, strict=True)
        )
    q, k = (rope_halves(x.clone(), rotation) for x in (q, k))
    for pages, rows in ((keys, k), (values, v)):
        store(pages, slots, rows)
    return q.contiguous().to(out_dtype)


def store(pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Write rows [T, KH, D] to slots of pages [U, P, KH, D]; what is not finite becomes 0."""
    rows = rows.where(rows.abs() < _LARGEST, 0.0)
    pages.flatten(0, 1).index_copy_(0, slots, rows.to(pages.dtype))
