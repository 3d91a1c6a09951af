"""Encoding and storing in Triton: numbers are read once, bytes written once."""

import math

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import (
    e4m3_codes,
    narrow,
    power_of_two,
    scale_exponent,
)
from jit_kernels.paged_rows import PageLayout
from jit_kernels.rms_norm.triton_backend import load_normed, warps
from jit_kernels.rope.triton_backend import rotate

_ELEMENTS = 2048
_NUMBERS = {"bf16": tl.bfloat16, "fp32": tl.float32}


@triton.jit
def _places(
    slots_ptr: tl.tensor, row: tl.tensor, rows: tl.tensor, PAGE_ROWS: tl.constexpr,
    DATA: tl.constexpr, SCALE: tl.constexpr, PAGE: tl.constexpr, ALIGN: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return (byte of the data part, byte of the scale part, whether the row is stored)."""
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1)
    kept = slot >= 0
    slot = tl.where(kept, slot, 0)
    page, line = slot // PAGE_ROWS, slot % PAGE_ROWS
    data = tl.multiple_of(page * PAGE + line * DATA, ALIGN)
    return data, page * PAGE + PAGE_ROWS * DATA + line * SCALE, kept


@triton.jit
def _store_numbers(
    pages_ptr: tl.tensor, data: tl.tensor, kept: tl.tensor, x: tl.tensor, column: tl.tensor,
    width: tl.tensor, NUMBER: tl.constexpr,
) -> None:  # fmt: skip
    """Write rows of plain numbers."""
    at = (pages_ptr + data).to(tl.pointer_type(NUMBER))[:, None] + column[None, :]
    tl.store(
        at, narrow(x, NUMBER), mask=kept[:, None] & ((column >= 0) & (column < width))[None, :]
    )


@triton.jit(do_not_specialize=["rows"])
def _records_kernel(
    x_ptr: tl.tensor, stride: tl.tensor, weight_ptr: tl.tensor, rotation_ptr: tl.tensor,
    slots_ptr: tl.tensor, pages_ptr: tl.tensor, rows: tl.tensor, width: tl.tensor,
    channels: tl.tensor, eps: tl.tensor, NORMED: tl.constexpr, NUMBER: tl.constexpr,
    PAGE_ROWS: tl.constexpr, DATA: tl.constexpr, SCALE: tl.constexpr, PAGE: tl.constexpr,
    ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    plain = width - channels
    if NORMED:
        x = load_normed(x_ptr, stride, weight_ptr, row, column, rows, width, eps, True)
        x = rotate(x, rotation_ptr, row, row < rows, plain, channels, False, ROWS, WIDTH)
    else:
        at = x_ptr + row.to(tl.int64)[:, None] * stride + column[None, :]
        mask = (row < rows)[:, None] & (column < width)[None, :]
        x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    data, scale, kept = _places(slots_ptr, row, rows, PAGE_ROWS, DATA, SCALE, PAGE, ALIGN)
    if NUMBER is None:
        BLOCKS: tl.constexpr = WIDTH // 64
        block = tl.arange(0, BLOCKS)
        groups = tl.reshape(x, [ROWS, BLOCKS, 64])
        exponent = scale_exponent(tl.max(tl.abs(groups), 2))
        # Rotated channels are no codes: their blocks are computed and not written.
        codes = e4m3_codes(groups * power_of_two(254 - exponent)[:, :, None])
        at = pages_ptr + data[:, None] + column[None, :]
        codes = tl.reshape(codes, [ROWS, WIDTH])
        tl.store(at, codes, mask=kept[:, None] & (column < plain)[None, :])
        _store_numbers(
            pages_ptr, data + plain, kept, x, column - plain, channels, tl.bfloat16
        )  # fmt: skip
        used = (block * 64 < plain)[None, :]
        at = pages_ptr + scale[:, None] + block[None, :]
        tl.store(at, exponent.to(tl.uint8), mask=kept[:, None] & used)
        pad = plain // 64 + tl.arange(0, 8)
        at = pages_ptr + scale[:, None] + pad[None, :]
        zeros = tl.zeros([ROWS, 8], tl.uint8)
        tl.store(at, zeros, mask=kept[:, None] & (pad < SCALE)[None, :])
    else:
        _store_numbers(pages_ptr, data, kept, x, column, width, NUMBER)


@triton.jit(do_not_specialize=["rows"])
def _keys_kernel(
    x_ptr: tl.tensor, stride: tl.tensor, slots_ptr: tl.tensor, pages_ptr: tl.tensor,
    rows: tl.tensor, width: tl.tensor, norm: tl.tensor, NUMBER: tl.constexpr,
    PAGE_ROWS: tl.constexpr, DATA: tl.constexpr, SCALE: tl.constexpr, PAGE: tl.constexpr,
    ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    at = x_ptr + row.to(tl.int64)[:, None] * stride + column[None, :]
    mask = (row < rows)[:, None] & (column < width)[None, :]
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    data, scale, kept = _places(slots_ptr, row, rows, PAGE_ROWS, DATA, SCALE, PAGE, ALIGN)
    if NUMBER is None:
        for level in tl.static_range(LEVELS):
            x = tl.reshape(x, [ROWS, WIDTH >> (level + 1), 2, 1 << level])
            low, high = tl.split(tl.permute(x, [0, 1, 3, 2]))
            x = tl.permute(tl.join(low + high, low - high), [0, 1, 3, 2])
            x = tl.reshape(x, [ROWS, WIDTH])
        x *= norm
        exponent = scale_exponent(tl.max(tl.abs(x), 1))
        codes = e4m3_codes(x * power_of_two(254 - exponent)[:, None])
        tl.store(pages_ptr + data[:, None] + column[None, :], codes, mask=kept[:, None])
        at = (pages_ptr + scale).to(tl.pointer_type(tl.float32))
        tl.store(at, power_of_two(exponent), mask=kept)
    else:
        _store_numbers(pages_ptr, data, kept, x, column, width, NUMBER)


def store_records(
    pages: torch.Tensor,
    slots: torch.Tensor,
    kv: torch.Tensor,
    layout: PageLayout,
    record_format: str,
    rope_channels: int,
) -> None:
    """Encode and store; see `jit_kernels.store_kv.store_records`."""
    _records(pages, slots, kv, layout, record_format, rope_channels)


def norm_rope_store(
    pages: torch.Tensor,
    slots: torch.Tensor,
    x: torch.Tensor,
    layout: PageLayout,
    weight: torch.Tensor,
    rotation: torch.Tensor,
    eps: float,
    record_format: str,
) -> None:
    """Norm, rotate, encode and store; see `jit_kernels.store_kv.norm_rope_store`."""
    normed = weight.contiguous(), rotation.contiguous(), eps
    _records(pages, slots, x, layout, record_format, rotation.shape[2], normed)


def store_keys(
    pages: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    layout: PageLayout,
    record_format: str,
) -> None:
    """Encode and store keys; see `jit_kernels.store_kv.store_keys`."""
    keys = keys if keys.stride(1) == 1 else keys.contiguous()
    rows, width = keys.shape
    if not rows:
        return
    block = triton.next_power_of_2(width)
    group = max(1, _ELEMENTS // block)
    _keys_kernel[(triton.cdiv(rows, group),)](
        keys,
        keys.stride(0),
        slots.contiguous(),
        pages,
        rows,
        width,
        width**-0.5,
        NUMBER=_NUMBERS.get(record_format),
        **_constants(layout),
        ROWS=group,
        WIDTH=block,
        LEVELS=block.bit_length() - 1,
        num_warps=warps(group * block),
    )


def _records(
    pages: torch.Tensor,
    slots: torch.Tensor,
    x: torch.Tensor,
    layout: PageLayout,
    record_format: str,
    channels: int,
    normed: tuple[torch.Tensor, torch.Tensor, float] | None = None,
) -> None:
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, width = x.shape
    if not rows:
        return
    weight, rotation, eps = normed or (x, x, 0.0)
    block = max(64, triton.next_power_of_2(width))
    group = max(1, _ELEMENTS // block)
    _records_kernel[(triton.cdiv(rows, group),)](
        x,
        x.stride(0),
        weight,
        rotation,
        slots.contiguous(),
        pages,
        rows,
        width,
        channels,
        eps,
        NORMED=normed is not None,
        NUMBER=_NUMBERS.get(record_format),
        **_constants(layout),
        ROWS=group,
        WIDTH=block,
        num_warps=warps(group * block),
    )


def _constants(layout: PageLayout) -> dict[str, int]:
    """Return the sizes of a page, and what all data parts are aligned to."""
    return {
        "PAGE_ROWS": layout.page_rows,
        "DATA": layout.data_bytes,
        "SCALE": layout.scale_bytes,
        "PAGE": layout.page_bytes,
        "ALIGN": math.gcd(layout.page_bytes, layout.data_bytes, 16),
    }
