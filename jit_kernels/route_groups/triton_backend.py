"""Routing by groups in Triton: a program has a token, its experts as groups of as many each."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_order import await_kernels, early
from jit_kernels.route_groups.reference import LEAST
from jit_kernels.triton_launch import prepared


@triton.jit
def _best(scores: tl.tensor, ids: tl.tensor, other: tl.constexpr) -> tl.tensor:
    """Return the greatest of all scores, and the first of those that have it, else `other`."""
    best = tl.max(tl.ravel(scores), axis=0)
    # Where all are NaN none is the best; any that there is will do.
    return best, tl.min(tl.ravel(tl.where(scores == best, ids, other)), axis=0)


@triton.jit
def _group_scores(compared: tl.tensor, ids: tl.tensor, PAIRS: tl.constexpr) -> tl.tensor:
    """Return the best score of each group, or the sum of its best two."""
    best = tl.max(compared, axis=1)
    if PAIRS:
        first = tl.min(tl.where(compared == best[:, None], ids, 1 << 30), axis=1)
        others = tl.where(ids == first[:, None], float("-inf"), compared)
        best += tl.max(others, axis=1)
    return best


@prepared
@triton.jit
def _kernel(
    logits_ptr: tl.tensor, stride: tl.tensor, bias_ptr: tl.tensor, expert_ptr: tl.tensor,
    weight_ptr: tl.tensor, scale: tl.tensor, least: tl.tensor, COUNT: tl.constexpr,
    GROUPS: tl.constexpr, KEPT: tl.constexpr, TOP_K: tl.constexpr, BIASED: tl.constexpr,
    NORMALISED: tl.constexpr, GROUP_ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CHOICES: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Choose groups, then experts of them; the first of equals."""
    EACH: tl.constexpr = COUNT // GROUPS
    token = tl.program_id(0).to(tl.int64)
    group, choice = tl.arange(0, GROUP_ROWS), tl.arange(0, CHOICES)
    column = tl.arange(0, COLUMNS)[None, :]
    ids = group[:, None] * EACH + column
    inside = (group[:, None] < GROUPS) & (column < EACH)
    await_kernels(EARLY)
    logits = tl.load(logits_ptr + token * stride + ids, mask=inside, other=float("-inf"))
    if BIASED:
        scores = 1.0 / (1.0 + tl.exp(-logits))
        bias = tl.load(bias_ptr + ids, mask=inside, other=0.0)
        compared = tl.where(inside, scores + bias, float("-inf"))
    else:
        scores = tl.exp(logits - tl.max(tl.ravel(logits), axis=0))
        scores = scores / tl.sum(tl.ravel(scores), axis=0)
        compared = tl.where(inside, scores, float("-inf"))
    if KEPT < GROUPS:
        of_groups = tl.where(group < GROUPS, _group_scores(compared, ids, BIASED), float("-inf"))
        chosen = tl.zeros([GROUP_ROWS], tl.int32)
        for _ in tl.static_range(KEPT):
            _best_score, found = _best(of_groups, group, GROUPS - 1)
            chosen = tl.where(group == found, 1, chosen)
            of_groups = tl.where(group == found, float("-inf"), of_groups)
        compared = tl.where((chosen == 1)[:, None], compared, float("-inf"))
    experts = tl.zeros([CHOICES], tl.int32)
    weights = tl.zeros([CHOICES], tl.float32)
    for nth in tl.static_range(TOP_K):
        _best_score, found = _best(compared, ids, COUNT - 1)
        mine = tl.sum(tl.ravel(tl.where(inside & (ids == found), scores, 0.0)), axis=0)
        experts = tl.where(choice == nth, found, experts)
        weights = tl.where(choice == nth, mine, weights)
        compared = tl.where(ids == found, float("-inf"), compared)
    if NORMALISED:
        weights = weights / (tl.sum(weights, axis=0) + least)
    real = choice < TOP_K
    tl.store(expert_ptr + token * TOP_K + choice, experts.to(tl.int64), mask=real)
    tl.store(weight_ptr + token * TOP_K + choice, weights * scale, mask=real)


def route_groups(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    groups: int,
    kept: int,
    normalised: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts; see `jit_kernels.route_groups.route_groups`."""
    tokens, count = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    experts = torch.empty((tokens, top_k), dtype=torch.int64, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    if tokens:
        _kernel[(tokens,)](
            *(logits, logits.stride(0), logits if bias is None else bias, experts, weights),
            *(float(scale), LEAST),
            COUNT=count,
            GROUPS=groups,
            KEPT=kept,
            TOP_K=top_k,
            BIASED=bias is not None,
            NORMALISED=normalised,
            GROUP_ROWS=triton.next_power_of_2(groups),
            COLUMNS=triton.next_power_of_2(count // groups),
            CHOICES=triton.next_power_of_2(top_k),
            num_warps=1 if count <= 256 else 4,
            **early(),
        )
    return experts, weights
