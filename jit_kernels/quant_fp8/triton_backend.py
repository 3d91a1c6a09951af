"""Rows of e4m3 in Triton: gate, maximum and rounding in one pass."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import e4m3_codes, power_of_two, scale_exponent
from jit_kernels.device_order import await_kernels, early
from jit_kernels.quant_fp8.reference import GROUP, empty_scales
from jit_kernels.triton_launch import prepared

# Elements a program rounds, as whole rows or as parts of one.
_ELEMENTS = 2048
_SILU_BLOCK = 1024


@triton.jit
def _store_groups(
    x: tl.tensor, codes_ptr: tl.tensor, scales_ptr: tl.tensor, scale_stride: tl.tensor,
    row: tl.tensor, first: tl.tensor, rows: tl.tensor, width: tl.tensor, ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Round [ROWS, WIDTH] float32, whose first channel is `first`, by groups of 128."""
    GROUPS: tl.constexpr = WIDTH // 128
    x = tl.reshape(x, [ROWS, GROUPS, 128])
    exponent = scale_exponent(tl.max(tl.abs(x), 2))
    x *= power_of_two(254 - exponent)[:, :, None]
    codes = tl.reshape(e4m3_codes(x), [ROWS, WIDTH])
    column = first + tl.arange(0, WIDTH)
    live = (row < rows)[:, None]
    at = codes_ptr + row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(at, codes, mask=live & (column < width)[None, :])
    group = first // 128 + tl.arange(0, GROUPS)
    at = scales_ptr + group.to(tl.int64)[None, :] * scale_stride + row[:, None]
    tl.store(at, power_of_two(exponent), mask=live & (group * 128 < width)[None, :])


@prepared
@triton.jit(do_not_specialize=["rows"])
def _rows_kernel(
    x_ptr: tl.tensor, stride: tl.tensor, codes_ptr: tl.tensor, scales_ptr: tl.tensor,
    scale_stride: tl.tensor, rows: tl.tensor, width: tl.tensor, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    await_kernels(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * WIDTH
    column = first + tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    at = x_ptr + row.to(tl.int64)[:, None] * stride + column[None, :]
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    _store_groups(x, codes_ptr, scales_ptr, scale_stride, row, first, rows, width, ROWS, WIDTH)


@triton.jit
def _load_gated(
    x_ptr: tl.tensor, stride: tl.tensor, row: tl.tensor, column: tl.tensor, inner: tl.tensor,
    limit: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Return the gated channels of one row in float32, zero past the last."""
    at = x_ptr + row * stride + column
    gate = tl.load(at, mask=column < inner, other=0.0).to(tl.float32)
    up = tl.load(at + inner, mask=column < inner, other=0.0).to(tl.float32)
    # NaN must stay NaN, which minimum and maximum do not promise.
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return gate / (1.0 + tl.exp(-gate)) * up


@prepared
@triton.jit(do_not_specialize=["rows"])
def _silu_kernel(
    x_ptr: tl.tensor, stride: tl.tensor, codes_ptr: tl.tensor, scales_ptr: tl.tensor,
    scale_stride: tl.tensor, rows: tl.tensor, inner: tl.tensor, limit: tl.tensor,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    await_kernels(EARLY)
    row = tl.program_id(0)
    first = tl.program_id(1) * BLOCK
    column = first + tl.arange(0, BLOCK)
    x = _load_gated(x_ptr, stride, row.to(tl.int64), column, inner, limit)
    _store_groups(
        x, codes_ptr, scales_ptr, scale_stride, row + tl.arange(0, 1), first, rows, inner, 1, BLOCK
    )


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows; see `jit_kernels.quant_fp8.quantise_rows`."""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, width = x.shape
    codes, scales = _results(rows, width, x.device)
    if not rows:
        return codes, scales
    block = min(triton.next_power_of_2(width), _ELEMENTS)
    group = _ELEMENTS // block
    _rows_kernel[(triton.cdiv(rows, group), triton.cdiv(width, block))](
        x,
        x.stride(0),
        codes.view(torch.uint8),
        scales,
        scales.stride(1),
        rows,
        width,
        ROWS=group,
        WIDTH=block,
        num_warps=4,  # 16 elements a thread
        **early(),
    )
    return codes, scales


def silu_mul_quant(gate_up: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate, multiply and round rows; see `jit_kernels.quant_fp8.silu_mul_quant`."""
    gate_up = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    codes, scales = _results(rows, inner, gate_up.device)
    if not rows:
        return codes, scales
    block = min(_SILU_BLOCK, triton.next_power_of_2(inner))
    _silu_kernel[(rows, triton.cdiv(inner, block))](
        gate_up,
        gate_up.stride(0),
        codes.view(torch.uint8),
        scales,
        scales.stride(1),
        rows,
        inner,
        limit,
        BLOCK=block,
        num_warps=max(1, block // 256),
        **early(),
    )
    return codes, scales


def _results(rows: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=device)
    return codes, empty_scales(rows, width // GROUP, device)
