"""Routing in Triton: a warp holds all experts of a token."""

import torch
import triton
import triton.language as tl

_HASHED_TOKENS = 32


@triton.jit
def _score(logits: tl.tensor) -> tl.tensor:
    """Return sqrt(softplus(x)), relatively exact far below zero too."""
    small = tl.exp(-tl.abs(logits))
    # log(1 + u) from the rounded 1 + u, and the error of rounding divided out.
    above = 1.0 + small
    error = tl.where(above == 1.0, 1.0, above - 1.0)
    log = tl.where(above == 1.0, small, tl.log(above) * (small / error))
    return tl.sqrt(log + tl.maximum(logits, 0.0))


@triton.jit
def _ordered(x: tl.tensor) -> tl.tensor:
    """Return int64 that orders as the float32 numbers do."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _route_kernel(
    logits_ptr: tl.tensor, stride: tl.tensor, bias_ptr: tl.tensor, experts_ptr: tl.tensor,
    weights_ptr: tl.tensor, scale: tl.tensor, COUNT: tl.constexpr, WIDTH: tl.constexpr,
    TOP_K: tl.constexpr, SLOTS: tl.constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, WIDTH)
    known = expert < COUNT
    scores = _score(tl.load(logits_ptr + token * stride + expert, mask=known, other=0.0))
    biased = scores + tl.load(bias_ptr + expert, mask=known, other=0.0)
    # One number orders by score, then by the lower id: a maximum finds both.
    LOWEST: tl.constexpr = -(2**63)
    keys = (_ordered(biased) << 32) | (WIDTH - 1 - expert).to(tl.int64)
    keys = tl.where(known, keys, LOWEST)
    slot = tl.arange(0, SLOTS)
    chosen = tl.zeros([SLOTS], tl.int64)
    weights = tl.zeros([SLOTS], tl.float32)
    total = 1e-20
    for place in tl.static_range(TOP_K):
        best = WIDTH - 1 - (tl.max(keys, 0) & 0xFFFFFFFF).to(tl.int32)
        weight = tl.sum(tl.where(expert == best, scores, 0.0), 0)
        keys = tl.where(expert == best, LOWEST, keys)
        chosen = tl.where(slot == place, best.to(tl.int64), chosen)
        weights = tl.where(slot == place, weight, weights)
        total += weight
    at = token * TOP_K + slot
    tl.store(experts_ptr + at, chosen, mask=slot < TOP_K)
    tl.store(weights_ptr + at, weights / total * scale, mask=slot < TOP_K)


@triton.jit(do_not_specialize=["tokens", "known"])
def _hashed_kernel(
    logits_ptr: tl.tensor, stride: tl.tensor, table_ptr: tl.tensor, ids_ptr: tl.tensor,
    experts_ptr: tl.tensor, weights_ptr: tl.tensor, tokens: tl.tensor, known: tl.tensor,
    scale: tl.tensor, TOP_K: tl.constexpr, SLOTS: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)[:, None]
    slot = tl.arange(0, SLOTS)[None, :]
    mask = (token < tokens) & (slot < TOP_K)
    token_id = tl.load(ids_ptr + token, mask=token < tokens, other=0)
    token_id = tl.where((token_id >= 0) & (token_id < known), token_id, known - 1)
    expert = tl.load(table_ptr + token_id * TOP_K + slot, mask=mask, other=0)
    tl.store(experts_ptr + token * TOP_K + slot, expert, mask=mask)
    scores = _score(tl.load(logits_ptr + token * stride + expert, mask=mask, other=0.0))
    scores = tl.where(mask, scores, 0.0)
    total = tl.sum(scores, 1, keep_dims=True) + 1e-20
    tl.store(weights_ptr + token * TOP_K + slot, scores / total * scale, mask=mask)


def route_topk(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts by score; see `jit_kernels.route_topk.route_topk`."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    tokens, count = logits.shape
    top_k = min(top_k, count)
    experts = torch.empty((tokens, top_k), dtype=torch.int64, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    if not experts.numel():
        return experts, weights
    _route_kernel[(tokens,)](
        logits,
        logits.stride(0),
        bias.contiguous(),
        experts,
        weights,
        scale,
        COUNT=count,
        WIDTH=triton.next_power_of_2(count),
        TOP_K=top_k,
        SLOTS=triton.next_power_of_2(top_k),
        num_warps=1,
    )
    return experts, weights


def route_hashed(
    logits: torch.Tensor, table: torch.Tensor, token_ids: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look up and weigh experts; see `jit_kernels.route_topk.route_hashed`."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    tokens, top_k = logits.shape[0], table.shape[1]
    experts = torch.empty((tokens, top_k), dtype=torch.int64, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    if not weights.numel():
        return experts, weights
    _hashed_kernel[(triton.cdiv(tokens, _HASHED_TOKENS),)](
        logits,
        logits.stride(0),
        table,
        token_ids,
        experts,
        weights,
        tokens,
        table.shape[0],
        scale,
        TOP_K=top_k,
        SLOTS=triton.next_power_of_2(top_k),
        TOKENS=_HASHED_TOKENS,
        num_warps=1,
    )
    return experts, weights
