"""Indexer keys and queries whose first channels turn, in Triton: a program has a tile of vectors.

The transform is a product with a matrix of signs. A float32 number is the sum of three of bfloat16,
so the products are exact. Both kernels wait for all before them and end before the next begins:
scores by DeepGEMM wait for nothing.
"""

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
from jit_kernels.indexer_queries.reference import padded_heads
from jit_kernels.paged_rows import PageLayout
from jit_kernels.triton_launch import prepared

# Tokens whose keys a program has: the least rows of a product.
_TOKENS = 16


@triton.jit
def _turned(
    x_at: tl.tensor, rotation_at: tl.tensor, live: tl.tensor, WIDTH: tl.constexpr,
    TURNED: tl.constexpr, HALVES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return vectors at `x_at` [ROWS, 1], their first channels turned, [ROWS, WIDTH] float32."""
    HALF: tl.constexpr = TURNED // 2
    channel = tl.arange(0, WIDTH)[None, :]
    turns = live & (channel < TURNED)
    if HALVES:
        low = channel < HALF
        partner = tl.where(low, channel + HALF, channel - HALF)
        cos_at, sin_at = channel % HALF, HALF + channel % HALF
        sign = tl.where(low, -1.0, 1.0)
    else:
        # Sines have their signs.
        partner, cos_at, sin_at = channel ^ 1, channel, TURNED + channel
        sign = 1.0
    x = tl.load(x_at + channel, mask=live & (channel < WIDTH), other=0.0)
    other = tl.load(x_at + partner, mask=turns, other=0.0)
    cos = tl.load(rotation_at + cos_at, mask=turns, other=1.0)
    sin = tl.load(rotation_at + sin_at, mask=turns, other=0.0)
    return x * cos + other * (sin * sign)


@triton.jit
def _transformed(
    x: tl.tensor, ROWS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr
) -> tl.tensor:
    """Return the normalised Hadamard transform of rows, in Sylvester's order."""
    lane = tl.arange(0, WIDTH)
    both = lane[:, None] & lane[None, :]
    both = both ^ (both >> 4)
    both = both ^ (both >> 2)
    both = both ^ (both >> 1)
    signs = narrow(1.0 - 2.0 * (both & 1).to(tl.float32), tl.bfloat16)
    high = narrow(x, tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = narrow(rest, tl.bfloat16)
    low = narrow(rest - middle.to(tl.float32), tl.bfloat16)
    sums = dot_bf16(low, signs, tl.zeros([ROWS, WIDTH], tl.float32))
    sums = dot_bf16(middle, signs, sums)
    sums = dot_bf16(high, signs, sums)
    return sums * NORM


@triton.jit(do_not_specialize=["tokens"])
def _keys_kernel(
    keys_ptr: tl.tensor, rotation_ptr: tl.tensor, slot_ptr: tl.tensor, pages_ptr: tl.tensor,
    tokens: tl.tensor, WIDTH: tl.constexpr, TURNED: tl.constexpr, ROTATION: tl.constexpr,
    HALVES: tl.constexpr, PAGE_ROWS: tl.constexpr, PAGE_BYTES: tl.constexpr,
    ROWS: tl.constexpr, NORM: tl.constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live, token = token < tokens, token.to(tl.int64)
    x = _turned(
        keys_ptr + token[:, None] * WIDTH, rotation_ptr + token[:, None] * ROTATION,
        live[:, None], WIDTH, TURNED, HALVES,
    )  # fmt: skip
    x = _transformed(x, ROWS, WIDTH, NORM)
    exponent = scale_exponent(tl.max(tl.abs(x), axis=1))
    slot = tl.load(slot_ptr + token, mask=live, other=0)
    page_at, place = pages_ptr + slot // PAGE_ROWS * PAGE_BYTES, slot % PAGE_ROWS
    at = (page_at + place * WIDTH)[:, None] + tl.arange(0, WIDTH)[None, :]
    tl.store(at, e4m3_codes(x * power_of_two(254 - exponent)[:, None]), mask=live[:, None])
    scale_at = (page_at + PAGE_ROWS * WIDTH).to(tl.pointer_type(tl.float32)) + place
    tl.store(scale_at, power_of_two(exponent), mask=live)


@triton.jit
def _queries_kernel(
    q_ptr: tl.tensor, weights_ptr: tl.tensor, rotation_ptr: tl.tensor, codes_ptr: tl.tensor,
    folded_ptr: tl.tensor, weights_stride: tl.tensor, HEADS: tl.constexpr, PADDED: tl.constexpr,
    WIDTH: tl.constexpr, TURNED: tl.constexpr, ROTATION: tl.constexpr, HALVES: tl.constexpr,
    NORM: tl.constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, channel = tl.arange(0, PADDED), tl.arange(0, WIDTH)
    live = head < HEADS
    x = _turned(
        q_ptr + (token * HEADS + head[:, None]) * WIDTH, rotation_ptr + token * ROTATION,
        live[:, None], WIDTH, TURNED, HALVES,
    )  # fmt: skip
    x = _transformed(x, PADDED, WIDTH, NORM)
    exponent = scale_exponent(tl.max(tl.abs(x), axis=1))
    at = codes_ptr + (token * PADDED + head[:, None]) * WIDTH + channel[None, :]
    tl.store(at, e4m3_codes(x * power_of_two(254 - exponent)[:, None]))
    weight = tl.load(weights_ptr + token * weights_stride + head, mask=live, other=0.0)
    tl.store(folded_ptr + token * PADDED + head, weight * power_of_two(exponent))


_keys, _queries = prepared(_keys_kernel), prepared(_queries_kernel)


def store_index_keys(
    pages: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    rotation: torch.Tensor,
    layout: PageLayout,
    halves: bool,
) -> None:
    """Turn, transform, round and store; see `jit_kernels.sparse_index.store_index_keys`."""
    tokens, width = keys.shape
    if tokens:
        _keys[(triton.cdiv(tokens, _TOKENS),)](
            *(keys, rotation, slots, pages, tokens),
            WIDTH=width,
            TURNED=rotation.shape[2] * (2 if halves else 1),
            ROTATION=2 * rotation.shape[2],
            HALVES=halves,
            PAGE_ROWS=layout.page_rows,
            PAGE_BYTES=layout.page_bytes,
            ROWS=_TOKENS,
            NORM=width**-0.5,
            num_warps=4,
        )


def index_queries(
    q: torch.Tensor, weights: torch.Tensor, rotation: torch.Tensor, halves: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn, transform and round; see `jit_kernels.sparse_index.index_queries`."""
    tokens, heads, width = q.shape
    padded = padded_heads(heads)
    shape = (tokens, padded, width)
    codes = torch.empty(shape, dtype=torch.float8_e4m3fn, device=q.device)
    folded = torch.empty((tokens, padded), dtype=torch.float32, device=q.device)
    if tokens:
        _queries[(tokens,)](
            *(q, weights, rotation, codes.view(torch.uint8), folded, weights.stride(0)),
            HEADS=heads,
            PADDED=padded,
            WIDTH=width,
            TURNED=rotation.shape[2] * (2 if halves else 1),
            ROTATION=2 * rotation.shape[2],
            HALVES=halves,
            NORM=width**-0.5,
            num_warps=padded // 8,
        )
    return codes, folded
