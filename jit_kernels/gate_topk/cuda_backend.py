"""A gate's product and routing in one kernel of CUDA C++, for many tokens.

The logits stay in shared memory, where they would be written by a launch and read by the next. Sums
are DeepGEMM's, bit by bit, so that a token does not depend on how many there are. Other calls go
through `separate_backend`. The sources are in `route_topk/cuda`, with those of routing alone.
"""

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_rows import is_aligned, processors
from jit_kernels.gate_topk import separate_backend
from jit_kernels.route_topk.cuda_backend import check, library

# Fewer tokens leave processors idle, as each block multiplies 64 by all experts.
LEAST_TOKENS = 6144
_EXPERTS, _CHOSEN, _MOST_LOOKED_UP = (256, 384), (6, 8), 8
_CHANNELS = 64


def gate_topk(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    top_k: int,
    scale: float,
    invariant: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply and choose; see `jit_kernels.gate_topk.gate_topk`."""
    if not takes(x, weight) or top_k not in _CHOSEN:
        return separate_backend.gate_topk(x, weight, bias, top_k, scale, invariant)
    bias = bias.contiguous()
    experts, weights = _results(x, top_k)
    error = launched(
        x.device,
        library().gate_topk_call,
        *(x.data_ptr(), x.stride(0), weight.data_ptr(), bias.data_ptr()),
        *(experts.data_ptr(), weights.data_ptr(), x.shape[0], *weight.shape, top_k, scale),
        processors(x.device),
    )
    check("gate_topk", error)
    return experts, weights


def gate_hashed(
    x: torch.Tensor,
    weight: torch.Tensor,
    table: torch.Tensor,
    token_ids: torch.Tensor,
    scale: float,
    invariant: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply and look up; see `jit_kernels.gate_topk.gate_hashed`."""
    known, top_k = table.shape
    if not takes(x, weight) or top_k > _MOST_LOOKED_UP:
        return separate_backend.gate_hashed(x, weight, table, token_ids, scale, invariant)
    experts, weights = _results(x, top_k)
    error = launched(
        x.device,
        library().gate_hashed_call,
        *(x.data_ptr(), x.stride(0), weight.data_ptr(), table.data_ptr(), token_ids.data_ptr()),
        *(experts.data_ptr(), weights.data_ptr(), x.shape[0], *weight.shape, known, top_k, scale),
        processors(x.device),
    )
    check("gate_hashed", error)
    return experts, weights


def takes(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Say whether the kernel takes the operands: many tokens, whole strips, as many experts."""
    count, depth = weight.shape
    return (
        x.shape[0] >= LEAST_TOKENS
        and count in _EXPERTS
        and depth > 0
        and not depth % _CHANNELS
        and weight.is_contiguous()
        and is_aligned(x)
        and is_aligned(weight)
    )


def _results(x: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (x.shape[0], top_k)
    experts = torch.empty(shape, dtype=torch.int64, device=x.device)
    return experts, torch.empty(shape, dtype=torch.float32, device=x.device)
