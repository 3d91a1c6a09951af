"""Compression in plain torch."""

from collections.abc import Sequence

import torch


def pool_blocks(kv: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Pool blocks; see `jit_kernels.compress_kv.pool_blocks`."""
    p = (gate - gate.amax(1, keepdim=True)).exp_()
    weighted = p * kv
    total, result = p[:, 0], weighted[:, 0]
    for slot in range(1, p.shape[1]):
        total = total + p[:, slot]
        result = result + weighted[:, slot]
    return result / total


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
