"""Routing by softmax in Triton: a program has a token."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_order import await_kernels, early
from jit_kernels.triton_launch import prepared


@prepared
@triton.jit
def _kernel(
    logits_ptr: tl.tensor, stride: tl.tensor, expert_ptr: tl.tensor, weight_ptr: tl.tensor,
    COUNT: tl.constexpr, TOP_K: tl.constexpr, NORMALISED: tl.constexpr, COLUMNS: tl.constexpr,
    CHOICES: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Choose the largest, the first of equals, TOP_K times."""
    token = tl.program_id(0).to(tl.int64)
    column, choice = tl.arange(0, COLUMNS), tl.arange(0, CHOICES)
    await_kernels(EARLY)
    at = logits_ptr + token * stride + column
    left = tl.load(at, mask=column < COUNT, other=float("-inf"))
    highest = tl.max(left, axis=0)
    total = tl.sum(tl.exp(left - highest), axis=0)
    experts = tl.zeros([CHOICES], tl.int32)
    scores = tl.zeros([CHOICES], tl.float32)
    for nth in tl.static_range(TOP_K):
        best = tl.max(left, axis=0)
        # Where all are NaN no column is the best; any that there is will do.
        found = tl.min(tl.where(left == best, column, COUNT - 1), axis=0)
        experts = tl.where(choice == nth, found, experts)
        scores = tl.where(choice == nth, tl.exp(best - highest), scores)
        left = tl.where(column == found, float("-inf"), left)
    if NORMALISED:
        total = tl.sum(scores, axis=0)
    real = choice < TOP_K
    tl.store(expert_ptr + token * TOP_K + choice, experts.to(tl.int64), mask=real)
    tl.store(weight_ptr + token * TOP_K + choice, scores / total, mask=real)


def route_softmax(
    logits: torch.Tensor, top_k: int, normalised: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts; see `jit_kernels.route_softmax.route_softmax`."""
    tokens, count = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    experts = torch.empty((tokens, top_k), dtype=torch.int64, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    if tokens:
        _kernel[(tokens,)](
            *(logits, logits.stride(0), experts, weights),
            COUNT=count,
            TOP_K=top_k,
            NORMALISED=normalised,
            COLUMNS=triton.next_power_of_2(count),
            CHOICES=triton.next_power_of_2(top_k),
            num_warps=1 if count <= 256 else 4,
            **early(),
        )
    return experts, weights
