"""Clamped SwiGLU in plain torch."""

import torch


def silu_mul(gate_up: torch.Tensor, limit: float, out_dtype: torch.dtype) -> torch.Tensor:
    """Gate and multiply; see `jit_kernels.silu_mul.silu_mul`."""
    gate, up = gate_up.to(torch.float32).chunk(2, -1)
    gate = gate.clamp(max=limit)
    # torch's silu differs in its last bit between the vector part of a tensor and its tail.
    result = gate.neg().exp_().add_(1.0)
    result = torch.div(gate, result, out=result)
    return result.mul_(up.clamp(-limit, limit)).to(out_dtype)
