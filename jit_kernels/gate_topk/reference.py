"""A gate's product and routing in plain torch; bits never depend on company."""

import torch

from jit_kernels.bf16_linear.reference import bf16_linear
from jit_kernels.route_topk import reference as routing


def gate_topk(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    top_k: int,
    scale: float,
    invariant: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply and choose; see `jit_kernels.gate_topk.gate_topk`."""
    return routing.route_topk(bf16_linear(x, weight), bias, top_k, scale)


def gate_hashed(
    x: torch.Tensor,
    weight: torch.Tensor,
    table: torch.Tensor,
    token_ids: torch.Tensor,
    scale: float,
    invariant: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply and look up; see `jit_kernels.gate_topk.gate_hashed`."""
    return routing.route_hashed(bf16_linear(x, weight), table, token_ids, scale)
