"""Heads in C, one step after the other."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.gqa_heads.reference import store
from jit_kernels.rms_norm.host import rms_norm
from jit_kernels.rope_halves.host import rope_halves

if TYPE_CHECKING:
    from jit_kernels.gqa_heads import HeadWeights


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
    heads = every.shape[1] - 2 * groups
    if weights.norms is None:
        rope_halves(every[:, : heads + groups], rotation)
        q, k = every[:, :heads], every[:, heads : heads + groups]
    else:
        both = every[:, :heads].contiguous(), every[:, heads : heads + groups].contiguous()
        q, k = (
            rope_halves(rms_norm(x, weight, weights.eps, torch.float32), rotation)
            for x, weight in zip(both, weights.norms, strict=True)
        )
    for pages, rows in ((keys, k), (values, every[:, heads + groups :])):
        store(pages, slots, rows)
    return q.to(out_dtype)
