"""Routed experts with biases in Triton; `jit_kernels/moe/triton_backend.py` has the kernels.

Numbers of other kinds than bfloat16 are left to the reference.
"""

import torch

from jit_kernels.biased_moe import reference
from jit_kernels.moe.triton_backend import Biased, run_experts


def biased_moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    biases: tuple[torch.Tensor, torch.Tensor],
    limit: float,
    alpha: float,
    invariant: bool,
) -> torch.Tensor:
    """Run the chosen experts of each row; see `jit_kernels.biased_moe.biased_moe`."""
    if x.dtype != torch.bfloat16:
        return reference.biased_moe(
            x, experts, weights, gate_up=gate_up, down=down, biases=biases, limit=limit,
            alpha=alpha, invariant=invariant,
        )  # fmt: skip
    return run_experts(
        x,
        experts,
        weights,
        gate_up=gate_up,
        down=down,
        limit=limit,
        biased=Biased(*biases, alpha),
        invariant=invariant,
        plus=None,
    )
