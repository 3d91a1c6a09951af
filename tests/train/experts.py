"""Mixture of experts for training: every expert on every token, weighed by what was routed.

At this size that is faster than sorting: two products for all experts and the shared one, and
no gather. What a token was not routed to has weight zero.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from jit_kernels.route_topk.reference import route_hashed, route_topk
from layers.models.deepseek_v4.config import ModelConfig
from tests.train.named import Named
from tests.train.places import Places
from tests.train.regions import Regions


@dataclass(frozen=True, slots=True)
class RoutingReport:
    """How a layer's tokens were routed.

    load     [E] float32, share of the choices that went to each expert
    balance  a row's loss for uneven routing, averaged; 0 where a table routes
    """

    load: Tensor
    balance: Tensor


def experts(
    x: Tensor, weights: Named, places: Places, *, config: ModelConfig, run: Regions
) -> tuple[Tensor, RoutingReport]:
    """Return the experts' sum [N, d] in the dtype of `x`, and how tokens were routed.

    x  [N, d] normed input
    """
    logits = F.linear(x.to(torch.float32), weights["gate.weight"])
    scale = config.routed_scaling_factor
    hashed = "gate.tid2eid" in weights
    if hashed:
        chosen, share = route_hashed(logits, weights["gate.tid2eid"], places.tokens, scale)
    else:
        top_k = config.num_experts_per_tok
        chosen, share = route_topk(logits, weights["gate.bias"], top_k, scale)
    taken = torch.zeros_like(logits).scatter(1, chosen, 1.0)
    balance = logits.new_zeros(()) if hashed else run(_balance)(logits, taken, places.rows)
    parts = [f"experts.{number}" for number in range(config.n_routed_experts)]
    parts.append("shared_experts")
    every = torch.zeros_like(logits).scatter(1, chosen, share)
    every = torch.cat((every, every.new_ones((every.shape[0], 1))), 1)
    gate = torch.cat([weights[f"{part}.w1.weight"] for part in parts])
    up = torch.cat([weights[f"{part}.w3.weight"] for part in parts])
    down = torch.cat([weights[f"{part}.w2.weight"] for part in parts], 1)
    hidden = run(_gated)(F.linear(x, gate), F.linear(x, up), every, config.swiglu_limit)
    return F.linear(hidden, down), RoutingReport(taken.sum(0) / chosen.numel(), balance)


def _gated(gate: Tensor, up: Tensor, every: Tensor, limit: float) -> Tensor:
    """Return the clamped SwiGLU of [N, experts * inner], each expert times its weight."""
    hidden = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    by_expert = hidden.unflatten(1, (every.shape[1], -1)) * every.unsqueeze(2).to(gate.dtype)
    return by_expert.flatten(1)


def _balance(logits: Tensor, taken: Tensor, rows: int) -> Tensor:
    """Return sum over experts of (load over its mean) * (share of the score), per row, averaged.

    taken  [N, E] float32, 1 where a token went
    Source: the sequence-wise balance loss of the DeepSeek-V3 report.
    """
    scores = F.softplus(logits).sqrt()
    share = (scores / scores.sum(1, keepdim=True)).unflatten(0, (rows, -1)).mean(1)
    load = taken.unflatten(0, (rows, -1)).mean(1)
    load = load * logits.shape[1] / load.sum(1, keepdim=True)
    return (load * share).sum(1).mean()
