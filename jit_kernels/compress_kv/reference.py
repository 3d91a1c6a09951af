"""Compression in plain torch."""

from collections.abc import Sequence

import torch


def pool_blocks(kv: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Pool blocks; see `jit_kernels.compress_kv.pool_blocks`."""
    p = (gate - gate.amax(1, keepdim=True)).exp_()
    return _slot_sum(p * kv) / _slot_sum(p)


def _slot_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum [M, S, C] over S in an order that depends on S alone: halves onto halves."""
    while (slots := x.shape[1]) > 1:
        half = slots // 2
        folded = x[:, :half] + x[:, half : 2 * half]
        x = folded if slots % 2 == 0 else torch.cat((folded, x[:, 2 * half :]), 1)
    return x[:, 0]


def fold_blocks(
    kv: torch.Tensor, gate: torch.Tensor, start: torch.Tensor, active: Sequence[int]
) -> torch.Tensor:
    """Fold tokens; see `jit_kernels.compress_kv.fold_blocks`."""
    states = kv.new_empty((kv.shape[0], 3, kv.shape[1]))
    before, first = start, 0
    for count in active:
        last = first + count
        after = states[first:last]
        greatest = torch.maximum(before[:count, 0], gate[first:last])
        decay = (before[:count, 0] - greatest).exp_()
        weight = (gate[first:last] - greatest).exp_()
        after[:, 0] = greatest
        after[:, 1] = (before[:count, 1] * decay).add_(weight)
        after[:, 2] = (before[:count, 2] * decay).add_(weight.mul_(kv[first:last]))
        before, first = after, last
    return states
