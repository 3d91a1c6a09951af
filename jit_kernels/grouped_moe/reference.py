"""Routed experts over rounded rows in plain torch, one expert at a time."""

import torch

from jit_kernels.expert_weights.forms import Fp8Experts
from jit_kernels.fp8_linear.reference import fp8_linear
from jit_kernels.quant_fp8.reference import silu_mul_quant
from jit_kernels.streamed_moe.reference import weighted_sum


def grouped_moe(
    codes: torch.Tensor,
    scales: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    parts: Fp8Experts,
    limit: float,
    plus: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Run the chosen experts; see `jit_kernels.grouped_moe.grouped_moe`."""
    shape = (*experts.shape, codes.shape[1])
    outputs = torch.zeros(shape, dtype=torch.float32, device=codes.device)
    for expert in range(parts.sizes[0]):
        row, choice = torch.nonzero(experts == expert, as_tuple=True)
        if len(row):
            gate_up = (parts.gate_up[expert], parts.gate_up_scales[expert])
            hidden = fp8_linear(codes[row], scales[row], *gate_up)
            down = (parts.down[expert], parts.down_scales[expert])
            mine = fp8_linear(*silu_mul_quant(hidden, limit), *down)
            outputs[row, choice] = mine.to(torch.float32)
    return weighted_sum(outputs, weights, plus, out_dtype)
