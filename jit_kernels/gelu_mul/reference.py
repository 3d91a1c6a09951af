"""A gate of GELU in plain torch."""

import math

import torch


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Gate and multiply; see `jit_kernels.gelu_mul.gelu_mul`."""
    gate, up = gate_up.chunk(2, -1)
    # (1 + tanh(z)) / 2 is sigmoid(2 z). torch's gelu, tanh and sigmoid differ in their last bit
    # between the vector part of a tensor and its tail.
    z = 2.0 * math.sqrt(2.0 / math.pi) * (gate + 0.044715 * (gate * gate * gate))
    return gate / ((-z).exp() + 1.0) * up
