"""Routed experts with biases in plain torch: the rows of one expert after another's."""

import torch

from jit_kernels.tile_linear.reference import tile_linear


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
    del invariant
    (into, back), (tokens, top_k) = biases, experts.shape
    outputs = x.new_empty((tokens, top_k, x.shape[1]), dtype=torch.float32)
    for expert in range(down.shape[0]):
        rows, choices = (experts == expert).nonzero(as_tuple=True)
        if len(rows):
            hidden = tile_linear(x[rows], gate_up[expert], torch.float32) + into[expert]
            hidden = _gated(hidden, limit, alpha).to(x.dtype)
            outputs[rows, choices] = tile_linear(hidden, down[expert], torch.float32) + back[expert]
    result = outputs[:, 0] * weights[:, :1]
    for choice in range(1, top_k):
        result = result + outputs[:, choice] * weights[:, choice : choice + 1]
    return result


def _gated(gate_up: torch.Tensor, limit: float, alpha: float) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    gate = gate.clamp(max=limit)
    # Not torch's sigmoid, which differs between the vector part of a tensor and its tail.
    return gate / ((-alpha * gate).exp() + 1.0) * (up.clamp(-limit, limit) + 1.0)
