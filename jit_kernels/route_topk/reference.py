"""Routing in plain torch."""

import torch


def route_topk(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts by score; see `jit_kernels.route_topk.route_topk`."""
    scores = _scores(logits)
    experts = torch.sort(scores + bias, dim=-1, descending=True, stable=True)[1][:, :top_k]
    return experts, _weights(scores, experts, scale)


def route_hashed(
    logits: torch.Tensor, table: torch.Tensor, token_ids: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look up and weigh experts; see `jit_kernels.route_topk.route_hashed`."""
    experts = table.index_select(0, token_ids)
    return experts, _weights(_scores(logits), experts, scale)


def _scores(logits: torch.Tensor) -> torch.Tensor:
    # torch's softplus differs in its last bit between the vector part of a tensor and its tail.
    return ((-logits.abs()).exp().log1p() + logits.clamp(min=0.0)).sqrt()


def _weights(scores: torch.Tensor, experts: torch.Tensor, scale: float) -> torch.Tensor:
    chosen = scores.gather(1, experts)
    total = chosen[:, 0] + 1e-20
    for slot in range(1, chosen.shape[1]):
        total = total + chosen[:, slot]
    return chosen / total.unsqueeze(1) * scale
