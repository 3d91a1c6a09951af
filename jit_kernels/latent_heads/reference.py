"""Heads that read latent records in plain torch; a token has the same bits in any company."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.latent_queries.reference import latent_queries
from jit_kernels.latent_records.reference import encode_latents
from jit_kernels.rms_norm.reference import rms_norm
from jit_kernels.rope.reference import rotated
from jit_kernels.rope_halves.reference import rope_halves
from jit_kernels.tile_linear.reference import tile_linear_grouped

if TYPE_CHECKING:
    from jit_kernels.latent_heads import LatentWeights

# bfloat16 rounds the largest of float32 to infinity.
_LARGEST = 3.38e38


def absorbed_heads(
    q: torch.Tensor,
    made: torch.Tensor,
    weights: "LatentWeights",
    rotation: torch.Tensor,
    records: torch.Tensor,
    slots: torch.Tensor,
    halves: bool,
    invariant: bool,
) -> torch.Tensor:
    """Store, multiply and turn; see `jit_kernels.latent_heads.absorbed_heads`."""
    del invariant
    _, depth, latent = weights.keys.shape
    plain, turned = made.split([latent, made.shape[1] - latent], 1)
    plain = rms_norm(plain, weights.norm, weights.eps, torch.float32)
    rows = torch.cat((plain, _turned(turned.unsqueeze(1), rotation, halves).squeeze(1)), 1)
    rows = rows.where(rows.abs() < _LARGEST, 0.0)
    packed = records.dtype == torch.uint8
    stored = encode_latents(rows, "fp8", turned.shape[1]) if packed else rows.to(records.dtype)
    records.flatten(0, 1).index_copy_(0, slots, stored)
    plain, turned = q.split([depth, q.shape[2] - depth], 2)
    absorbed = latent_queries(plain.to(torch.bfloat16).to(torch.float32), weights.keys)
    return torch.cat((absorbed, _turned(turned, rotation, halves)), 2).to(torch.bfloat16)


def latent_values(read: torch.Tensor, values: torch.Tensor, invariant: bool) -> torch.Tensor:
    """Multiply; see `jit_kernels.latent_heads.latent_values`."""
    del invariant
    return tile_linear_grouped(read.to(torch.float32), values).to(torch.bfloat16)


def _turned(x: torch.Tensor, rotation: torch.Tensor, halves: bool) -> torch.Tensor:
    """Return all channels of `x` [T, H, R] turned, a copy."""
    if not halves:
        return rotated(x, rotation)
    return rope_halves(x.clone(memory_format=torch.contiguous_format), rotation)
