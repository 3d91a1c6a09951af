"""Clamped SwiGLU in plain torch."""

import torch


def silu_mul(gate_up: torch.Tensor, limit: float, out_dtype: torch.dtype) -> torch.Tensor:
    """Gate and multiply; see `jit_kernels.silu_mul.silu_mul`."""
    gate, up = gate_up.to(torch.float32).chunk(2, -1)
    gate = gate.clamp(max=limit)
    # torch's silu differs in its last bit between the vector part of a tensor and its tail.
    silu = gate / ((-gate).exp() + 1.0)
    return (silu * up.clamp(-limit, limit)).to(out_dtype)
