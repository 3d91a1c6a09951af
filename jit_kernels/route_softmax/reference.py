"""Routing by softmax in plain torch."""

import torch


def route_softmax(
    logits: torch.Tensor, top_k: int, normalised: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts; see `jit_kernels.route_softmax.route_softmax`."""
    experts = torch.sort(logits, dim=-1, descending=True, stable=True)[1][:, :top_k]
    scores = (logits - logits.amax(1, keepdim=True)).exp()
    chosen = scores.gather(1, experts)
    total = _in_order(chosen if normalised else scores)
    return experts, chosen / total


def _in_order(scores: torch.Tensor) -> torch.Tensor:
    """Return the sums of rows, [T, 1]: column after column, the same in any company."""
    total, *others = scores.split(1, 1)
    for part in others:
        total = total + part
    return total
