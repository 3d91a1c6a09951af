"""Compression for training: all blocks of a row at once, instead of token by token."""

import torch
import torch.nn.functional as F
from torch import Tensor

from jit_kernels.compress_kv.reference import pool_blocks
from jit_kernels.rms_norm.reference import rms_norm
from jit_kernels.rope.reference import rotated
from tests.train.named import Named
from tests.train.places import Places
from tests.train.regions import Regions


def compress(
    x: Tensor, weights: Named, places: Places, *, ratio: int, eps: float, run: Regions
) -> Tensor:
    """Return the records of all whole blocks, normed and rotated, [B * T / ratio, C] float32.

    x        [B * T, d]
    weights  wkv, wgate, ape and norm of one compressor
    """
    wide = x.to(torch.float32)
    shape = (places.rows, places.length // ratio, ratio, -1)
    kv = F.linear(wide, weights["wkv.weight"]).view(shape)
    gate = F.linear(wide, weights["wgate.weight"]).view(shape)
    pooled = run(_pooled_pairs if ratio == 4 else _pooled)(kv, gate, weights["ape"])
    return run(_finished)(pooled, weights["norm.weight"], places.blocks[ratio], eps)


def _pooled(kv: Tensor, gate: Tensor, ape: Tensor) -> Tensor:
    """Pool [B, W, m, C] over the tokens of each block: [B * W, C]."""
    return pool_blocks(kv.flatten(0, 1), (gate + ape).flatten(0, 1))


def _pooled_pairs(kv: Tensor, gate: Tensor, ape: Tensor) -> Tensor:
    """Pool series a of the block before with series b of the block: [B * W, C]."""
    gate = gate + ape

    def slots(x: Tensor, absent: float) -> Tensor:
        a, b = x.chunk(2, -1)
        before = F.pad(a[:, :-1], (0, 0, 0, 0, 1, 0), value=absent)
        return torch.cat((before, b), 2).flatten(0, 1)

    return pool_blocks(slots(kv, 0.0), slots(gate, -torch.inf))


def _finished(pooled: Tensor, norm: Tensor, rotation: Tensor, eps: float) -> Tensor:
    records = rms_norm(pooled, norm, eps, torch.float32)
    return rotate(records.unsqueeze(1), rotation)[:, 0]


def rotate(x: Tensor, rotation: Tensor, inverse: bool = False) -> Tensor:
    """Return `x` [N, H, C] with its last channels rotated by `rotation` [N, 2, R]."""
    plain = x.shape[-1] - rotation.shape[-1]
    turned = rotated(x[..., plain:], rotation, inverse)
    return torch.cat((x[..., :plain], turned), -1)
