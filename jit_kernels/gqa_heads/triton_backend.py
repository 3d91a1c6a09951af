"""Heads in Triton: a program has some heads of one kind of one token, and reads them once."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow
from jit_kernels.device_order import await_kernels, early
from jit_kernels.triton_launch import prepared

if TYPE_CHECKING:
    from jit_kernels.gqa_heads import HeadWeights

_MOST_HEADS = 8


@triton.jit
def _load(at: tl.tensor, bias_at: tl.tensor, inside: tl.tensor, BIASED: tl.constexpr) -> tl.tensor:
    x = tl.load(at, mask=inside, other=0.0)
    if BIASED:
        x += tl.load(bias_at, mask=inside, other=0.0)
    return x


@triton.jit
def _store(to: tl.tensor, x: tl.tensor, inside: tl.tensor) -> None:
    x = tl.where(tl.abs(x) < 3.38e38, x, 0.0)
    tl.store(to, narrow(x, to.dtype.scalar.element_ty), mask=inside)


@triton.jit
def _norm(at: tl.tensor, real: tl.tensor, HALF: tl.constexpr) -> tl.tensor:
    """Return both halves of the weight of a norm."""
    return tl.load(at, mask=real, other=0.0), tl.load(at + HALF, mask=real, other=0.0)


@triton.jit
def _kernel(
    made_ptr: tl.tensor, rotation_ptr: tl.tensor, slot_ptr: tl.tensor, bias_ptr: tl.tensor,
    q_norm_ptr: tl.tensor, k_norm_ptr: tl.tensor, q_ptr: tl.tensor, keys_ptr: tl.tensor,
    values_ptr: tl.tensor, eps: tl.tensor, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr, BIASED: tl.constexpr, NORMED: tl.constexpr, EACH: tl.constexpr,
    HALF: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Make EACH heads; WIDTH / 2 channels are padded to HALF."""
    Q_BLOCKS: tl.constexpr = (HEADS + EACH - 1) // EACH
    K_BLOCKS: tl.constexpr = (GROUPS + EACH - 1) // EACH
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    is_query, is_value = block < Q_BLOCKS, block >= Q_BLOCKS + K_BLOCKS
    nth = tl.where(is_query, block, (block - Q_BLOCKS) % K_BLOCKS) * EACH + tl.arange(0, EACH)
    first = tl.where(is_query, 0, tl.where(is_value, HEADS + GROUPS, HEADS))
    channel = tl.arange(0, HALF)
    inside = (nth < tl.where(is_query, HEADS, GROUPS))[:, None] & (channel < WIDTH // 2)[None, :]
    inner = nth[:, None] * WIDTH + channel[None, :]
    await_kernels(EARLY)
    at = first * WIDTH + inner
    line = made_ptr + token * ((HEADS + 2 * GROUPS) * WIDTH)
    low = _load(line + at, bias_ptr + at, inside, BIASED)
    high = _load(line + at + WIDTH // 2, bias_ptr + at + WIDTH // 2, inside, BIASED)
    slot = tl.load(slot_ptr + token)
    if is_value:
        to = values_ptr + slot * (GROUPS * WIDTH) + inner
        _store(to, low, inside)
        _store(to + WIDTH // 2, high, inside)
    else:
        real = channel < WIDTH // 2
        if NORMED:
            of_queries = _norm(q_norm_ptr + channel, real, WIDTH // 2)
            of_keys = _norm(k_norm_ptr + channel, real, WIDTH // 2)
            squares = tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)
            factor = tl.rsqrt(squares / WIDTH + eps)[:, None]
            low = low * factor * tl.where(is_query, of_queries[0], of_keys[0])[None, :]
            high = high * factor * tl.where(is_query, of_queries[1], of_keys[1])[None, :]
        turn_at = rotation_ptr + token * WIDTH + channel
        cos = tl.load(turn_at, mask=real, other=0.0)[None, :]
        sin = tl.load(turn_at + WIDTH // 2, mask=real, other=0.0)[None, :]
        turned_low, turned_high = low * cos - high * sin, high * cos + low * sin
        if is_query:
            to = q_ptr + token * (HEADS * WIDTH) + inner
            tl.store(to, narrow(turned_low, q_ptr.dtype.element_ty), mask=inside)
            tl.store(to + WIDTH // 2, narrow(turned_high, q_ptr.dtype.element_ty), mask=inside)
        else:
            to = keys_ptr + slot * (GROUPS * WIDTH) + inner
            _store(to, turned_low, inside)
            _store(to + WIDTH // 2, turned_high, inside)


_launch = prepared(_kernel)


def gqa_heads(
    made: torch.Tensor,
    rotation: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    weights: "HeadWeights",
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Make heads; see `jit_kernels.gqa_heads.gqa_heads`."""
    groups, width = keys.shape[2:]
    tokens, heads = made.shape[0], made.shape[1] // width - 2 * groups
    q = torch.empty((tokens, heads, width), dtype=out_dtype, device=made.device)
    if not tokens:
        return q
    each = min(_MOST_HEADS, triton.next_power_of_2(groups))
    blocks = triton.cdiv(heads, each) + 2 * triton.cdiv(groups, each)
    q_norm, k_norm = weights.norms or (rotation, rotation)
    _launch[(tokens, blocks)](
        *(made, rotation, slots, made if weights.bias is None else weights.bias, q_norm, k_norm),
        *(q, keys, values, weights.eps),
        HEADS=heads,
        GROUPS=groups,
        WIDTH=width,
        BIASED=weights.bias is not None,
        NORMED=weights.norms is not None,
        EACH=each,
        HALF=triton.next_power_of_2(width // 2),
        num_warps=4,
        **early(),
    )
    return q
