"""Packed records of 448 + 64 channels, read by Triton kernels.

A record's channels are taken in parts whose widths are powers of two: 256, 128 and 64 e4m3
codes with a scale for each 64, then 64 bfloat16. Triton's interpreter works on float32 instead of
bfloat16; both hold every number of a record exactly.
"""

import triton
import triton.language as tl

from jit_kernels.device_numbers import INTERPRETED, power_of_two

__all__ = ["code_part", "e4m3_numbers", "find_records", "rotated_part"]

_TWO_TO_120 = tl.constexpr(2.0**120)


@triton.jit
def e4m3_numbers(codes: tl.tensor) -> tl.tensor:
    """Return the numbers of e4m3 bytes, float32."""
    if INTERPRETED:
        # Shifted into place the fields are those of a float32 whose exponent is 120 too small.
        bits = codes.to(tl.int32)
        size = bits & 0x7F
        x = (size << 20).to(tl.float32, bitcast=True) * _TWO_TO_120
        x = tl.where(size == 0x7F, float("nan"), x).to(tl.int32, bitcast=True)
        return (x | ((bits & 0x80) << 24)).to(tl.float32, bitcast=True)
    return codes.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(tl.float32)


@triton.jit
def find_records(
    pages_ptr: tl.tensor, slots: tl.tensor, page_rows: tl.tensor, page_bytes: tl.tensor
) -> tl.tensor:
    """Return (page, row in it, scales of channels 0..255, of 256..447) of slots [K].

    Four exponents lie in an int32. A negative slot reads nothing and has the scales 2^-127.
    Layouts may be constants or not; pages are a multiple of 576 bytes either way.
    """
    found = slots >= 0
    slot = tl.where(found, slots, 0)
    page, row = (slot // page_rows).to(tl.int64), slot % page_rows
    words = pages_ptr.to(tl.pointer_type(tl.int32))
    at = words + page * (page_bytes // 4) + row * 2 + page_rows * 144
    low = tl.load(at, mask=found, other=0)
    high = tl.load(at + 1, mask=found, other=0)
    return page, row, low, high


@triton.jit
def code_part(
    pages_ptr: tl.tensor, page: tl.tensor, row: tl.tensor, found: tl.tensor, scales: tl.tensor,
    page_bytes: tl.tensor, FIRST: tl.constexpr, BLOCKS: tl.constexpr, SHIFT: tl.constexpr,
    KEYS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return channels FIRST.. of records, [KEYS, 64 * BLOCKS]; zeros where none was found.

    scales  [KEYS] int32, the exponent of the first block at bit SHIFT
    """
    block, column = tl.arange(0, BLOCKS), tl.arange(0, 64)
    record = pages_ptr + page * page_bytes + row * 576
    at = record[:, None, None] + (FIRST + block * 64)[None, :, None] + column[None, None, :]
    codes = tl.load(at, mask=found[:, None, None], other=0)
    exponents = (scales[:, None] >> (SHIFT + block * 8)[None, :]) & 0xFF
    # By way of float32: the device has no quick way from float16 to bfloat16.
    numbers = e4m3_numbers(codes) * power_of_two(exponents)[:, :, None]
    numbers = tl.reshape(numbers, [KEYS, 64 * BLOCKS])
    return numbers if INTERPRETED else numbers.to(tl.bfloat16)


@triton.jit
def rotated_part(
    pages_ptr: tl.tensor, page: tl.tensor, row: tl.tensor, found: tl.tensor,
    page_bytes: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Return the 64 rotated channels of records, [KEYS, 64]; zeros where none was found."""
    record = pages_ptr.to(tl.pointer_type(tl.bfloat16)) + page * (page_bytes // 2) + row * 288
    at = record[:, None] + (224 + tl.arange(0, 64))[None, :]
    numbers = tl.load(at, mask=found[:, None], other=0.0)
    return numbers.to(tl.float32) if INTERPRETED else numbers
