"""Routing in C."""

import torch

from jit_kernels.host import function, raise_fault

_route = function("route", "ppppfiii")


def route_topk(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts by score; see `jit_kernels.route_topk.route_topk`."""
    experts = torch.empty((logits.shape[0], top_k), dtype=torch.int64)
    return experts, _weights(logits, bias.data_ptr(), experts, scale)


def route_hashed(
    logits: torch.Tensor, table: torch.Tensor, token_ids: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look up and weigh experts; see `jit_kernels.route_topk.route_hashed`."""
    experts = table.index_select(0, token_ids)
    return experts, _weights(logits, None, experts, scale)


def _weights(
    logits: torch.Tensor, bias: int | None, experts: torch.Tensor, scale: float
) -> torch.Tensor:
    logits = logits.contiguous()
    weights = torch.empty(experts.shape, dtype=torch.float32)
    pointers = (logits.data_ptr(), bias, experts.data_ptr(), weights.data_ptr())
    raise_fault(_route(*pointers, scale, *logits.shape, experts.shape[1]))
    return weights
