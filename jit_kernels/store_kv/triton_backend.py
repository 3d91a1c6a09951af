"""Encoding and storing in Triton: numbers are read once, bytes written once."""

import math

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import (
    NUMBERS,
    e4m3_codes,
    narrow,
    power_of_two,
    scale_exponent,
)
from jit_kernels.paged_rows import PageLayout
from jit_kernels.rms_norm.triton_backend import load_normed, warps
from jit_kernels.rope.triton_backend import rotate

_ELEMENTS = 2048


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
    channels: tl.tensor, eps: tl.tensor, NUMBER: tl.constexpr,
    PAGE_ROWS: tl.constexpr, DATA: tl.constexpr, SCALE: tl.constexpr, PAGE: tl.constexpr,
    ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    plain = width - channels
    x = load_normed(x_ptr, stride, weight_ptr, row, column, rows, width, eps, True)
    x = rotate(x, rotation_ptr, row, row < rows, plain, channels, False, ROWS, WIDTH)
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
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, width = x.shape
    if not rows:
        return
    block = max(64, triton.next_power_of_2(width))
    group = max(1, _ELEMENTS // block)
    _records_kernel[(triton.cdiv(rows, group),)](
        x,
        x.stride(0),
        weight.contiguous(),
        rotation.contiguous(),
        slots.contiguous(),
        pages,
        rows,
        width,
        rotation.shape[2],
        eps,
        NUMBER=NUMBERS.get(record_format),
        PAGE_ROWS=layout.page_rows,
        DATA=layout.data_bytes,
        SCALE=layout.scale_bytes,
        PAGE=layout.page_bytes,
        ALIGN=math.gcd(layout.page_bytes, layout.data_bytes, 16),
        ROWS=group,
        WIDTH=block,
        num_warps=warps(group * block),
    )
