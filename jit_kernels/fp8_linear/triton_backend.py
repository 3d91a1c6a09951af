"""Products of fp8 numbers in Triton, the weight's rows as the tall side of every tile.

Few rows of activations: the weight is streamed once. A program takes SPLIT blocks of 128 channels
at a time, a warp each, so that a narrow weight still has enough bytes under way, and adds up the
warps' sums at the end. Many rows: square tiles. Sums of a block of 128 channels start at zero and
are scaled into float32 accumulators, as the tensor cores' own sums have few bits.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow
from jit_kernels.triton_launch import prepared

# Beyond this many programs a wider tile, which reads the activations less often, costs nothing.
_MANY_PROGRAMS = 400


class Tile(NamedTuple):
    """A program's share: rows of the weight, rows of activations, blocks of K side by side."""

    weight_rows: int
    rows: int
    split: int
    warps: int
    stages: int


# First line whose `rows` hold T; else the last. A list is tried from its widest weight tile down.
FEW_ROWS = (
    (8, (Tile(64, 8, 4, 4, 3), Tile(32, 8, 4, 4, 4), Tile(16, 8, 4, 4, 4))),
    (16, (Tile(64, 16, 4, 4, 3), Tile(32, 16, 4, 4, 4), Tile(16, 16, 4, 4, 4))),
    (32, (Tile(64, 32, 4, 8, 3), Tile(32, 32, 4, 4, 3))),
)
MANY_ROWS = ((64, Tile(64, 64, 1, 4, 4)), (None, Tile(128, 128, 1, 8, 3)))


@prepared
@triton.jit(do_not_specialize=["rows"])
def _stream_kernel(
    x_ptr: tl.tensor, scale_ptr: tl.tensor, weight_ptr: tl.tensor, weight_scale_ptr: tl.tensor,
    out_ptr: tl.tensor, rows: tl.tensor, x_stride: tl.tensor, scale_row: tl.tensor,
    scale_block: tl.tensor, N: tl.constexpr, K: tl.constexpr, GROUPS: tl.constexpr,
    SPLIT: tl.constexpr, WEIGHT_ROWS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Write [ROWS, WEIGHT_ROWS] of one group's product; SPLIT divides nothing, odd ends mask."""
    BLOCKS: tl.constexpr = K // 128
    EVEN: tl.constexpr = (BLOCKS % SPLIT == 0) and (N % WEIGHT_ROWS == 0)
    group = tl.program_id(2).to(tl.int64)
    line = tl.program_id(0) * WEIGHT_ROWS + tl.arange(0, WEIGHT_ROWS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    part = tl.arange(0, SPLIT)
    lane = tl.arange(0, 128)
    live = row < rows
    weight_at = (
        weight_ptr
        + group * (N * K)
        + (line[None, :, None] * K + part[:, None, None] * 128 + lane[None, None, :])
    )
    x_at = (
        x_ptr
        + group * K
        + (
            row[None, None, :].to(tl.int64) * x_stride
            + part[:, None, None] * 128
            + lane[None, :, None]
        )
    )
    block_rows: tl.constexpr = (N + 127) // 128
    weight_scale_at = (
        weight_scale_ptr + (group * block_rows + tl.program_id(0) * WEIGHT_ROWS // 128) * BLOCKS
    )
    scale_at = scale_ptr + group * BLOCKS * scale_block
    sums = tl.zeros([SPLIT, WEIGHT_ROWS, ROWS], tl.float32)
    for step in tl.range(0, (BLOCKS + SPLIT - 1) // SPLIT, num_stages=STAGES):
        block = step * SPLIT + part
        here = block < BLOCKS
        if EVEN:
            w = tl.load(weight_at + step * (SPLIT * 128))
            x = tl.load(x_at + step * (SPLIT * 128), mask=live[None, None, :], other=0.0)
        else:
            inside = here[:, None, None] & (line < N)[None, :, None]
            w = tl.load(weight_at + step * (SPLIT * 128), mask=inside, other=0.0)
            inside = here[:, None, None] & live[None, None, :]
            x = tl.load(x_at + step * (SPLIT * 128), mask=inside, other=0.0)
        weight_scale = tl.load(weight_scale_at + block, mask=here, other=0.0)
        scale = tl.load(
            scale_at + block[:, None] * scale_block + row[None, :] * scale_row,
            mask=here[:, None] & live[None, :],
            other=0.0,
        )
        sums += tl.dot(w, x) * (weight_scale[:, None] * scale)[:, None, :]
    total = narrow(tl.sum(sums, 0), out_ptr.dtype.element_ty)
    at = out_ptr + group * N + row[None, :].to(tl.int64) * (GROUPS * N) + line[:, None]
    tl.store(at, total, mask=live[None, :] & (line < N)[:, None])


@prepared
@triton.jit(do_not_specialize=["rows"])
def _tile_kernel(
    x_ptr: tl.tensor, scale_ptr: tl.tensor, weight_ptr: tl.tensor, weight_scale_ptr: tl.tensor,
    out_ptr: tl.tensor, rows: tl.tensor, x_stride: tl.tensor, scale_row: tl.tensor,
    scale_block: tl.tensor, N: tl.constexpr, K: tl.constexpr, GROUPS: tl.constexpr,
    WEIGHT_ROWS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Write [ROWS, WEIGHT_ROWS] of one group's product, a block of channels at a time."""
    BLOCKS: tl.constexpr = K // 128
    EVEN: tl.constexpr = N % WEIGHT_ROWS == 0
    group = tl.program_id(2).to(tl.int64)
    # Neighbours share the rows of activations, the larger side of a long prompt.
    line = tl.program_id(0) * WEIGHT_ROWS + tl.arange(0, WEIGHT_ROWS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, 128)
    live = row < rows
    weight_at = weight_ptr + group * (N * K) + (line[:, None] * K + lane[None, :])
    x_at = x_ptr + group * K + (row[None, :].to(tl.int64) * x_stride + lane[:, None])
    block_rows: tl.constexpr = (N + 127) // 128
    weight_scale_at = (
        weight_scale_ptr + (group * block_rows + tl.program_id(0) * WEIGHT_ROWS // 128) * BLOCKS
    )
    scale_at = scale_ptr + group * BLOCKS * scale_block + row.to(tl.int64) * scale_row
    sums = tl.zeros([WEIGHT_ROWS, ROWS], tl.float32)
    for block in tl.range(0, BLOCKS, num_stages=STAGES):
        if EVEN:
            w = tl.load(weight_at + block * 128)
        else:
            w = tl.load(weight_at + block * 128, mask=(line < N)[:, None], other=0.0)
        x = tl.load(x_at + block * 128, mask=live[None, :], other=0.0)
        weight_scale = tl.load(weight_scale_at + block)
        scale = tl.load(scale_at + block * scale_block, mask=live, other=0.0)
        sums += tl.dot(w, x) * (weight_scale * scale)[None, :]
    total = narrow(sums, out_ptr.dtype.element_ty)
    at = out_ptr + group * N + row[None, :].to(tl.int64) * (GROUPS * N) + line[:, None]
    tl.store(at, total, mask=live[None, :] & (line < N)[:, None])


def fp8_linear(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Multiply; see `jit_kernels.fp8_linear.fp8_linear`."""
    tile = chosen_tile(codes.shape[0], weight.shape[0])
    return multiply(codes, scales, weight, weight_scales, out_dtype, tile=tile)


def fp8_linear_grouped(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Multiply group by group; see `jit_kernels.fp8_linear.fp8_linear_grouped`."""
    tile = chosen_tile(codes.shape[0], weight.shape[0] * weight.shape[1])
    return multiply(codes, scales, weight, weight_scales, out_dtype, tile=tile)


def fp8_linear_invariant(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Multiply, groups or none, in tiles of one size whatever the number of rows."""
    tile = MANY_ROWS[-1][1]
    return multiply(codes, scales, weight, weight_scales, out_dtype, tile=tile)


fp8_linear_grouped_invariant = fp8_linear_invariant


def chosen_tile(rows: int, weight_rows: int) -> Tile:
    """Return the tile for `rows` activations and this many rows of weight in all groups."""
    for most, tiles in FEW_ROWS:
        if rows <= most:
            wide_enough = (t for t in tiles if weight_rows // t.weight_rows >= _MANY_PROGRAMS)
            return next(wide_enough, tiles[-1])
    return next(tile for most, tile in MANY_ROWS if most is None or rows <= most)


def multiply(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    out_dtype: torch.dtype,
    *,
    tile: Tile,
) -> torch.Tensor:
    """Multiply in tiles of this size: [T, K] and [N, K], or [T, G, K] and [G, N, K]."""
    rows, (columns, depth) = codes.shape[0], weight.shape[-2:]
    groups = weight.shape[0] if weight.dim() == 3 else 1
    codes, weight, scales = _packed(codes), weight.contiguous(), _even(scales)
    out = torch.empty((*codes.shape[:-1], columns), dtype=out_dtype, device=codes.device)
    if not out.numel():
        return out
    grid = (triton.cdiv(columns, tile.weight_rows), triton.cdiv(rows, tile.rows), groups)
    arguments = (codes, scales, weight, weight_scales.contiguous(), out, rows, codes.stride(0))
    strides = (scales.stride(0), scales.stride(-1))
    sizes = {"N": columns, "K": depth, "GROUPS": groups, "WEIGHT_ROWS": tile.weight_rows}
    launch = {"ROWS": tile.rows, "STAGES": tile.stages, "num_warps": tile.warps}
    if tile.split > 1:
        _stream_kernel[grid](*arguments, *strides, **sizes, SPLIT=tile.split, **launch)
    else:
        _tile_kernel[grid](*arguments, *strides, **sizes, **launch)
    return out


def _even(scales: torch.Tensor) -> torch.Tensor:
    """Return `scales` with all those of a row, group after group, evenly apart."""
    even = scales.dim() == 2 or scales.stride(1) == scales.shape[2] * scales.stride(2)
    return scales if even else scales.contiguous()


def _packed(codes: torch.Tensor) -> torch.Tensor:
    """Return `codes` with their channels, and groups if any, next to each other."""
    packed = codes.stride(-1) == 1 and (codes.dim() == 2 or codes.stride(1) == codes.shape[2])
    return codes if packed else codes.contiguous()
