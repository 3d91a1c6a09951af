"""Compression in plain torch."""

from collections.abc import Sequence

import torch


def pool_members(
    rows: torch.Tensor, members: torch.Tensor, kv: int, gate: int, width: int
) -> torch.Tensor:
    """Pool rows; see `jit_kernels.compress_kv.pool_members`."""
    half = members.shape[1] // 2
    absent = (members < 0).unsqueeze(2)
    found = rows[members.clamp(min=0)]

    def slots(column: int, fill: float) -> torch.Tensor:
        earlier = found[:, :half, column : column + width]
        later = found[:, half:, column + width : column + 2 * width]
        return torch.cat((earlier, later), 1).masked_fill(absent, fill)

    return pool_blocks(slots(kv, 0.0), slots(gate, -torch.inf))


def pool_blocks(kv: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return `sum_s softmax_s(gate) * kv` of [M, S, C], in an order that depends on S alone.

    gate  [M, S, C]   -inf where a slot is absent; its kv must then be finite
    """
    p = (gate - gate.amax(1, keepdim=True)).exp()
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
    states = [kv.new_empty((0, 3, kv.shape[1]))]
    before = start
    for step_kv, step_gate in zip(kv.split(list(active)), gate.split(list(active)), strict=True):
        greatest_before, total, weighted = before[: step_kv.shape[0]].unbind(1)
        greatest = torch.maximum(greatest_before, step_gate)
        decay, weight = (greatest_before - greatest).exp(), (step_gate - greatest).exp()
        total = total * decay + weight
        before = torch.stack((greatest, total, weighted * decay + weight * step_kv), 1)
        states.append(before)
    return torch.cat(states)
