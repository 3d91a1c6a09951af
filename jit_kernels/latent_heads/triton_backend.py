"""Heads that read latent records in Triton: a program has a tile of tokens and a head.

Between queries and values FlashMLA attends, whose kernels wait for no others (`device_order`).
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import (
    dot_bf16,
    e4m3_codes,
    narrow,
    power_of_two,
    scale_exponent,
)
from jit_kernels.device_order import await_kernels, await_quietly, early, late
from jit_kernels.triton_launch import prepared

if TYPE_CHECKING:
    from jit_kernels.latent_heads import LatentWeights


class Tile(NamedTuple):
    """Tokens and columns of a product that a program has, channels a step, warps and stages."""

    tokens: int
    columns: int
    depth: int
    warps: int
    stages: int


# For few tokens, some, and many or where bits are fixed: other tiles are other instructions.
_FEW, _SOME, _MANY = Tile(16, 32, 128, 4, 3), Tile(64, 32, 128, 4, 3), Tile(64, 128, 64, 4, 3)
_MOST_SOME = 256


@triton.jit
def _turn(
    at: tl.tensor, rotation_at: tl.tensor, pair: tl.tensor, live: tl.tensor, TURNED: tl.constexpr,
    HALVES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the first and second channels of turned pairs, and where they are."""
    HALF: tl.constexpr = TURNED // 2
    if HALVES:
        low_at, high_at = pair, pair + HALF
        cos = tl.load(rotation_at + pair, mask=live, other=0.0)
        sin = tl.load(rotation_at + HALF + pair, mask=live, other=0.0)
    else:
        low_at, high_at = 2 * pair, 2 * pair + 1
        cos = tl.load(rotation_at + high_at, mask=live, other=0.0)
        sin = tl.load(rotation_at + TURNED + high_at, mask=live, other=0.0)
    low = tl.load(at + low_at, mask=live, other=0.0)
    high = tl.load(at + high_at, mask=live, other=0.0)
    return low * cos - high * sin, high * cos + low * sin, low_at, high_at


@triton.jit
def _finite(x: tl.tensor) -> tl.tensor:
    return tl.where(tl.abs(x) < 3.38e38, x, 0.0)


@triton.jit
def _store(to: tl.tensor, x: tl.tensor, inside: tl.tensor) -> None:
    tl.store(to, narrow(_finite(x), tl.bfloat16), mask=inside)


@triton.jit
def _store_packed(
    record_at: tl.tensor, x: tl.tensor, LATENT: tl.constexpr, CHANNELS: tl.constexpr
) -> None:
    """Write e4m3 codes in blocks of 128, and behind them a float32 scale of each block."""
    BLOCKS: tl.constexpr = CHANNELS // 128
    block = tl.arange(0, BLOCKS)
    parts = tl.reshape(_finite(x), [BLOCKS, 128])
    exponent = scale_exponent(tl.max(tl.abs(parts), axis=1))
    codes = e4m3_codes(parts * power_of_two(254 - exponent)[:, None])
    channel = block[:, None] * 128 + tl.arange(0, 128)[None, :]
    tl.store(record_at + channel, codes, mask=channel < LATENT)
    scale_at = (record_at + LATENT).to(tl.pointer_type(tl.float32))
    tl.store(scale_at + block, power_of_two(exponent), mask=block * 128 < LATENT)


@triton.jit
def _store_token(
    at: tl.tensor, record_at: tl.tensor, norm_ptr: tl.tensor, rotation_at: tl.tensor,
    eps: tl.tensor, LATENT: tl.constexpr, TURNED: tl.constexpr, HALVES: tl.constexpr,
    CHANNELS: tl.constexpr, PAIRS: tl.constexpr, PACKED: tl.constexpr,
) -> None:  # fmt: skip
    """Norm, turn and write one token's record."""
    channel, pair = tl.arange(0, CHANNELS), tl.arange(0, PAIRS)
    inside, live = channel < LATENT, pair < TURNED // 2
    x = tl.load(at + channel, mask=inside, other=0.0)
    weight = tl.load(norm_ptr + channel, mask=inside, other=0.0)
    factor = tl.rsqrt(tl.sum(x * x) / LATENT + eps)
    low, high, low_at, high_at = _turn(at + LATENT, rotation_at, pair, live, TURNED, HALVES)
    if PACKED:
        _store_packed(record_at, x * factor * weight, LATENT, CHANNELS)
        turned_at = (record_at + LATENT + LATENT // 32).to(tl.pointer_type(tl.bfloat16))
    else:
        _store(record_at + channel, x * factor * weight, inside)
        turned_at = record_at + LATENT
    _store(turned_at + low_at, low, live)
    _store(turned_at + high_at, high, live)


@triton.jit
def _multiply(
    x_at: tl.tensor, weight_at: tl.tensor, live: tl.tensor, column: tl.tensor,
    depth_stride: tl.tensor, column_stride: tl.tensor, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the product of rows at `x_at` [TOKENS] and COLUMNS columns of a head's weight."""
    lane = tl.arange(0, STEP)
    sums = tl.zeros([TOKENS, COLUMNS], tl.float32)
    for first in tl.range(0, DEPTH, STEP, num_stages=STAGES):
        real = first + lane < DEPTH
        x = tl.load(x_at[:, None] + first + lane, mask=live[:, None] & real[None, :], other=0.0)
        at = weight_at + (first + lane)[:, None] * depth_stride + column[None, :] * column_stride
        weight = tl.load(at, mask=real[:, None] & (column < WIDTH)[None, :], other=0.0)
        sums = dot_bf16(narrow(x.to(tl.float32), tl.bfloat16), weight, sums)
    return sums


@triton.jit(do_not_specialize=["tokens"])
def _heads_kernel(
    q_ptr: tl.tensor, made_ptr: tl.tensor, keys_ptr: tl.tensor, norm_ptr: tl.tensor,
    rotation_ptr: tl.tensor, records_ptr: tl.tensor, slot_ptr: tl.tensor, out_ptr: tl.tensor,
    tokens: tl.tensor, eps: tl.tensor, token_stride: tl.tensor, made_stride: tl.tensor,
    head_stride: tl.tensor, row_stride: tl.tensor, HEADS: tl.constexpr, PLAIN: tl.constexpr,
    LATENT: tl.constexpr, TURNED: tl.constexpr, ROTATION: tl.constexpr, HALVES: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
    CHANNELS: tl.constexpr, PAIRS: tl.constexpr, RECORD: tl.constexpr, PACKED: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply COLUMNS columns of a head's queries, or turn their others, or store records."""
    WIDTH: tl.constexpr = LATENT + TURNED
    BLOCKS: tl.constexpr = (LATENT + COLUMNS - 1) // COLUMNS
    head, block, first = tl.program_id(1), tl.program_id(2), tl.program_id(0) * TOKENS
    token = first + tl.arange(0, TOKENS)
    live, token = token < tokens, token.to(tl.int64)
    await_quietly(EARLY)
    q_at = q_ptr + token * token_stride + head * (PLAIN + TURNED)
    out_at = out_ptr + (token * HEADS + head) * WIDTH
    if block < BLOCKS:
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        sums = _multiply(
            q_at, keys_ptr + head.to(tl.int64) * head_stride, live, column, row_stride, 1,
            PLAIN, LATENT, TOKENS, COLUMNS, STEP, STAGES,
        )  # fmt: skip
        inside = live[:, None] & (column < LATENT)[None, :]
        tl.store(out_at[:, None] + column[None, :], narrow(sums, tl.bfloat16), mask=inside)
    elif block == BLOCKS:
        pair = tl.arange(0, PAIRS)[None, :]
        turns = live[:, None] & (pair < TURNED // 2)
        low, high, low_at, high_at = _turn(
            q_at[:, None] + PLAIN, rotation_ptr + token[:, None] * ROTATION, pair, turns,
            TURNED, HALVES,
        )  # fmt: skip
        to = out_at[:, None] + LATENT
        tl.store(to + low_at, narrow(low, tl.bfloat16), mask=turns)
        tl.store(to + high_at, narrow(high, tl.bfloat16), mask=turns)
    else:
        # The programs of a tile share its tokens.
        for nth in tl.range(head, tl.minimum(TOKENS, tokens - first), HEADS):
            place = first.to(tl.int64) + nth
            _store_token(
                made_ptr + place * made_stride, records_ptr + tl.load(slot_ptr + place) * RECORD,
                norm_ptr, rotation_ptr + place * ROTATION, eps, LATENT, TURNED, HALVES, CHANNELS,
                PAIRS, PACKED,
            )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def _values_kernel(
    read_ptr: tl.tensor, values_ptr: tl.tensor, out_ptr: tl.tensor, tokens: tl.tensor,
    head_stride: tl.tensor, row_stride: tl.tensor, HEADS: tl.constexpr, LATENT: tl.constexpr,
    VALUE: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply COLUMNS values of a head."""
    head = tl.program_id(1)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    live, place = token < tokens, token.to(tl.int64) * HEADS + head
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    await_kernels(EARLY)
    sums = _multiply(
        read_ptr + place * LATENT, values_ptr + head.to(tl.int64) * head_stride, live, column,
        1, row_stride, LATENT, VALUE, TOKENS, COLUMNS, STEP, STAGES,
    )  # fmt: skip
    inside = live[:, None] & (column < VALUE)[None, :]
    to = out_ptr + place[:, None] * VALUE + column[None, :]
    tl.store(to, narrow(sums, tl.bfloat16), mask=inside)


_heads, _values = prepared(_heads_kernel), prepared(_values_kernel)


def absorbed_heads(
    q: torch.Tensor,
    made: torch.Tensor,
    weights: "LatentWeights",
    rotation: torch.Tensor,
    records: torch.Tensor,
    slots: torch.Tensor,
    halves: bool,
    invariant: bool,
) -> torch.Tensor:
    """Store, multiply and turn; see `jit_kernels.latent_heads.absorbed_heads`."""
    keys, tokens = weights.keys, q.shape[0]
    heads, plain, latent = keys.shape
    turned = q.shape[2] - plain
    out = torch.empty((tokens, heads, latent + turned), dtype=torch.bfloat16, device=q.device)
    if tokens:
        tile = _tile(tokens, invariant=invariant)
        grid = (triton.cdiv(tokens, tile.tokens), heads, triton.cdiv(latent, tile.columns) + 2)
        _heads[grid](
            *(q, made, keys, weights.norm, rotation, records, slots, out, tokens, weights.eps),
            *(q.stride(0), made.stride(0), keys.stride(0), keys.stride(1)),
            HEADS=heads,
            PLAIN=plain,
            LATENT=latent,
            TURNED=turned,
            ROTATION=2 * rotation.shape[2],
            HALVES=halves,
            TOKENS=tile.tokens,
            COLUMNS=tile.columns,
            STEP=tile.depth,
            STAGES=tile.stages,
            CHANNELS=triton.next_power_of_2(latent),
            PAIRS=triton.next_power_of_2(turned // 2),
            RECORD=records.shape[2],
            PACKED=records.dtype == torch.uint8,
            num_warps=tile.warps,
            **early(),
        )
    return out


def latent_values(read: torch.Tensor, values: torch.Tensor, invariant: bool) -> torch.Tensor:
    """Multiply; see `jit_kernels.latent_heads.latent_values`."""
    tokens, (heads, value, latent) = read.shape[0], values.shape
    out = torch.empty((tokens, heads * value), dtype=torch.bfloat16, device=read.device)
    if tokens:
        tile = _tile(tokens, invariant=invariant)
        grid = (triton.cdiv(tokens, tile.tokens), heads, triton.cdiv(value, tile.columns))
        _values[grid](
            *(read, values, out, tokens, values.stride(0), values.stride(1)),
            HEADS=heads,
            LATENT=latent,
            VALUE=value,
            TOKENS=tile.tokens,
            COLUMNS=tile.columns,
            STEP=tile.depth,
            STAGES=tile.stages,
            num_warps=tile.warps,
            **late(),
        )
    return out


def _tile(tokens: int, *, invariant: bool) -> Tile:
    if invariant or tokens > _MOST_SOME:
        return _MANY
    return _FEW if tokens <= _FEW.tokens else _SOME
