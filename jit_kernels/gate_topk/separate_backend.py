"""A gate's product and routing as two ops."""

import torch

from jit_kernels.bf16_linear import bf16_linear
from jit_kernels.route_topk import route_hashed, route_topk


def gate_topk(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    top_k: int,
    scale: float,
    invariant: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply and choose; see `jit_kernels.gate_topk.gate_topk`."""
    logits = bf16_linear(x, weight, invariant=invariant)
    return route_topk(logits, bias, top_k=top_k, scale=scale)


def gate_hashed(
    x: torch.Tensor,
    weight: torch.Tensor,
    table: torch.Tensor,
    token_ids: torch.Tensor,
    scale: float,
    invariant: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply and look up; see `jit_kernels.gate_topk.gate_hashed`."""
    logits = bf16_linear(x, weight, invariant=invariant)
    return route_hashed(logits, table, token_ids, scale=scale)
