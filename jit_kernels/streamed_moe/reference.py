"""Routed experts in plain torch, one expert at a time, its weights in float32."""

from collections.abc import Callable

import torch

from jit_kernels.expert_weights.forms import Fp4Experts, Fp8Experts
from jit_kernels.expert_weights.reference import dense_expert
from jit_kernels.silu_mul.reference import silu_mul
from jit_kernels.tile_linear.reference import tile_linear


def streamed_moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    parts: Fp8Experts | Fp4Experts,
    limit: float,
    added: Callable[[], torch.Tensor | None],
    out_dtype: torch.dtype,
    size: int,
) -> torch.Tensor:
    """Run the chosen experts; see `jit_kernels.streamed_moe.streamed_moe`. `size` is not used."""
    del size
    outputs = torch.zeros((*experts.shape, x.shape[1]), dtype=torch.float32, device=x.device)
    for expert in range(parts.sizes[0]):
        row, choice = torch.nonzero(experts == expert, as_tuple=True)
        if len(row):
            gate_up, down = dense_expert(parts, expert)
            hidden = silu_mul(tile_linear(x[row], gate_up, torch.float32), limit, x.dtype)
            outputs[row, choice] = tile_linear(hidden, down, torch.float32)
    return weighted_sum(outputs, weights, added(), out_dtype)


def weighted_sum(
    outputs: torch.Tensor,
    weights: torch.Tensor,
    plus: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Sum [T, k, d] with weights [T, k] over k in order, then add `plus`, in float32."""
    result = outputs[:, 0] * weights[:, :1]
    for choice in range(1, outputs.shape[1]):
        result += outputs[:, choice] * weights[:, choice : choice + 1]
    return (result if plus is None else result + plus).to(out_dtype)
