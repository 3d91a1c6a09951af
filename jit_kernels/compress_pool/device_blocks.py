"""What becomes of a block's mean, in Triton: norm, rotation, bytes, their place in a page.

A block is a vector of float32, zeros after its last channel. Launches that use these must set
`enable_fp_fusion=False`: without fused multiply-adds a block has the same bits in every kernel that
makes it, in whatever order the compiler puts things.
"""

import triton
import triton.language as tl

from jit_kernels.device_numbers import e4m3_codes, narrow, power_of_two, scale_exponent

__all__ = ["normed_turned", "store_key", "store_record"]


@triton.jit
def normed_turned(
    x: tl.tensor, weight_ptr: tl.tensor, rotation_ptr: tl.tensor, eps: tl.tensor,
    CHANNELS: tl.constexpr, TURNED: tl.constexpr, WIDTH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return a block normed, the last TURNED of its CHANNELS rotated."""
    column = tl.arange(0, WIDTH)
    x *= tl.rsqrt(tl.sum(x * x, 0) / CHANNELS + eps)
    x *= tl.load(weight_ptr + column, mask=column < CHANNELS, other=0.0)
    pair = tl.arange(0, WIDTH // 2) * 2 - (CHANNELS - TURNED)
    turned = (pair >= 0) & (pair < TURNED)
    cos = tl.load(rotation_ptr + pair, mask=turned, other=1.0)
    sin = tl.load(rotation_ptr + TURNED + 1 + pair, mask=turned, other=0.0)
    even, odd = tl.split(tl.reshape(x, [WIDTH // 2, 2]))
    first, second = even * cos - odd * sin, odd * cos + even * sin
    return tl.reshape(tl.join(first, second), [WIDTH])


@triton.jit
def store_record(
    pages_ptr: tl.tensor, slot: tl.tensor, x: tl.tensor, CHANNELS: tl.constexpr,
    TURNED: tl.constexpr, NUMBER: tl.constexpr, PAGE_ROWS: tl.constexpr, DATA: tl.constexpr,
    SCALE: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Write a block as a record: packed if NUMBER is None, else as plain numbers."""
    column = tl.arange(0, WIDTH)
    page_ptr = pages_ptr + (slot // PAGE_ROWS).to(tl.int64) * PAGE
    line = slot % PAGE_ROWS
    data_ptr = page_ptr + line * DATA
    if NUMBER is None:
        PLAIN: tl.constexpr = CHANNELS - TURNED
        BLOCKS: tl.constexpr = WIDTH // 64
        groups = tl.reshape(x, [BLOCKS, 64])
        exponent = scale_exponent(tl.max(tl.abs(groups), 1))
        # Rotated channels are no codes: their blocks are computed and not written.
        codes = e4m3_codes(groups * power_of_two(254 - exponent)[:, None])
        tl.store(data_ptr + column, tl.reshape(codes, [WIDTH]), mask=column < PLAIN)
        at = (data_ptr + PLAIN).to(tl.pointer_type(tl.bfloat16)) + (column - PLAIN)
        rotated = (column >= PLAIN) & (column < CHANNELS)
        tl.store(at, narrow(x, tl.bfloat16), mask=rotated)
        scale_ptr = page_ptr + PAGE_ROWS * DATA + line * SCALE
        block = tl.arange(0, BLOCKS)
        tl.store(scale_ptr + block, exponent.to(tl.uint8), mask=block * 64 < PLAIN)
        pad = PLAIN // 64 + tl.arange(0, 8)
        tl.store(scale_ptr + pad, tl.zeros([8], tl.uint8), mask=pad < SCALE)
    else:
        at = data_ptr.to(tl.pointer_type(NUMBER)) + column
        tl.store(at, narrow(x, NUMBER), mask=column < CHANNELS)


@triton.jit
def store_key(
    pages_ptr: tl.tensor, slot: tl.tensor, x: tl.tensor, CHANNELS: tl.constexpr,
    NUMBER: tl.constexpr, PAGE_ROWS: tl.constexpr, DATA: tl.constexpr, SCALE: tl.constexpr,
    PAGE: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr, NORM: tl.constexpr,
) -> None:  # fmt: skip
    """Write a block as an indexer key: transformed and rounded if NUMBER is None.

    LEVELS is the logarithm of CHANNELS, a power of two where it counts, NORM its root's inverse.
    """
    column = tl.arange(0, WIDTH)
    page_ptr = pages_ptr + (slot // PAGE_ROWS).to(tl.int64) * PAGE
    line = slot % PAGE_ROWS
    data_ptr = page_ptr + line * DATA
    if NUMBER is None:
        for level in tl.static_range(LEVELS):
            x = tl.reshape(x, [WIDTH >> (level + 1), 2, 1 << level])
            low, high = tl.split(tl.permute(x, [0, 2, 1]))
            x = tl.permute(tl.join(low + high, low - high), [0, 2, 1])
            x = tl.reshape(x, [WIDTH])
        x *= NORM
        exponent = scale_exponent(tl.max(tl.abs(x), 0))
        codes = e4m3_codes(x * power_of_two(254 - exponent))
        tl.store(data_ptr + column, codes, mask=column < CHANNELS)
        scale_ptr = (page_ptr + PAGE_ROWS * DATA + line * SCALE).to(tl.pointer_type(tl.float32))
        tl.store(scale_ptr, power_of_two(exponent))
    else:
        at = data_ptr.to(tl.pointer_type(NUMBER)) + column
        tl.store(at, narrow(x, NUMBER), mask=column < CHANNELS)
