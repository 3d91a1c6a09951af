"""Products of bfloat16 numbers in Triton, the weight's rows as the tall side of every tile.

Few rows of activations: the weight is streamed once. A program takes SPLIT blocks of channels at a
time, a warp each, so that a weight of 64 rows still has many bytes under way, and adds up the
warps' sums at the end. Many rows: square tiles.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import INTERPRETED, narrow
from jit_kernels.triton_launch import prepared

# Beyond this many programs a wider tile, which reads the activations less often, costs nothing.
_MANY_PROGRAMS = 400


class Tile(NamedTuple):
    """A program's share: rows of the weight, rows of activations, channels, blocks side by side."""

    weight_rows: int
    rows: int
    depth: int
    split: int
    warps: int
    stages: int


# First line whose `rows` hold T; else the last. A list is tried from its widest weight tile down.
FEW_ROWS = (
    (8, (Tile(64, 8, 64, 4, 4, 3), Tile(32, 8, 64, 4, 4, 4), Tile(16, 8, 64, 8, 8, 4))),
    (16, (Tile(64, 16, 64, 4, 4, 3), Tile(32, 16, 64, 4, 4, 4), Tile(16, 16, 64, 8, 8, 4))),
    (32, (Tile(64, 32, 64, 4, 8, 3), Tile(16, 32, 64, 8, 8, 3))),
)
MANY_ROWS = ((64, Tile(64, 64, 64, 1, 4, 4)), (None, Tile(128, 128, 64, 1, 8, 3)))


@triton.jit
def dot_bf16(a: tl.tensor, b: tl.tensor, sums: tl.tensor) -> tl.tensor:
    """Return `sums + a @ b` for bfloat16 factors; the interpreter cannot multiply those."""
    if INTERPRETED:
        return sums + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, sums)


@prepared
@triton.jit(do_not_specialize=["rows"])
def _stream_kernel(
    x_ptr: tl.tensor, weight_ptr: tl.tensor, out_ptr: tl.tensor, rows: tl.tensor,
    x_stride: tl.tensor, N: tl.constexpr, K: tl.constexpr,
    SPLIT: tl.constexpr, DEPTH: tl.constexpr, WEIGHT_ROWS: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Write [ROWS, WEIGHT_ROWS] of the product."""
    STEP: tl.constexpr = SPLIT * DEPTH
    EVEN: tl.constexpr = (K % STEP == 0) and (N % WEIGHT_ROWS == 0)
    line = tl.program_id(0) * WEIGHT_ROWS + tl.arange(0, WEIGHT_ROWS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    across = tl.arange(0, SPLIT)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    live = (row < rows)[None, None, :]
    weight_at = weight_ptr + (line[None, :, None] * K + across[:, None, :])
    x_at = x_ptr + (row[None, None, :].to(tl.int64) * x_stride + across[:, :, None])
    sums = tl.zeros([SPLIT, WEIGHT_ROWS, ROWS], tl.float32)
    for step in tl.range(0, (K + STEP - 1) // STEP, num_stages=STAGES):
        if EVEN:
            w = tl.load(weight_at + step * STEP)
            x = tl.load(x_at + step * STEP, mask=live, other=0.0)
        else:
            here = across + step * STEP < K
            inside = here[:, None, :] & (line < N)[None, :, None]
            w = tl.load(weight_at + step * STEP, mask=inside, other=0.0)
            x = tl.load(x_at + step * STEP, mask=here[:, :, None] & live, other=0.0)
        sums = dot_bf16(w, x, sums)
    total = narrow(tl.sum(sums, 0), out_ptr.dtype.element_ty)
    at = out_ptr + row[None, :].to(tl.int64) * N + line[:, None]
    tl.store(at, total, mask=(row < rows)[None, :] & (line < N)[:, None])


@prepared
@triton.jit(do_not_specialize=["rows"])
def _tile_kernel(
    x_ptr: tl.tensor, weight_ptr: tl.tensor, out_ptr: tl.tensor, rows: tl.tensor,
    x_stride: tl.tensor, N: tl.constexpr, K: tl.constexpr,
    DEPTH: tl.constexpr, WEIGHT_ROWS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Write [ROWS, WEIGHT_ROWS] of the product."""
    EVEN: tl.constexpr = (K % DEPTH == 0) and (N % WEIGHT_ROWS == 0)
    line = tl.program_id(0) * WEIGHT_ROWS + tl.arange(0, WEIGHT_ROWS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, DEPTH)
    live = (row < rows)[None, :]
    weight_at = weight_ptr + (line[:, None] * K + lane[None, :])
    x_at = x_ptr + (row[None, :].to(tl.int64) * x_stride + lane[:, None])
    sums = tl.zeros([WEIGHT_ROWS, ROWS], tl.float32)
    for first in tl.range(0, K, DEPTH, num_stages=STAGES):
        if EVEN:
            w = tl.load(weight_at + first)
            x = tl.load(x_at + first, mask=live, other=0.0)
        else:
            here = lane + first < K
            w = tl.load(weight_at + first, mask=here[None, :] & (line < N)[:, None], other=0.0)
            x = tl.load(x_at + first, mask=here[:, None] & live, other=0.0)
        sums = dot_bf16(w, x, sums)
    total = narrow(sums, out_ptr.dtype.element_ty)
    at = out_ptr + row[None, :].to(tl.int64) * N + line[:, None]
    tl.store(at, total, mask=live & (line < N)[:, None])


def bf16_linear(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """Multiply; see `jit_kernels.bf16_linear.bf16_linear`."""
    return multiply(x, weight, out_dtype, tile=chosen_tile(x.shape[0], weight.shape[0]))


def bf16_linear_invariant(
    x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    """Multiply in tiles of one size whatever the number of rows."""
    return multiply(x, weight, out_dtype, tile=MANY_ROWS[-1][1])


def chosen_tile(rows: int, weight_rows: int) -> Tile:
    """Return the tile for `rows` activations and this many rows of weight."""
    for most, tiles in FEW_ROWS:
        if rows <= most:
            wide_enough = (t for t in tiles if weight_rows // t.weight_rows >= _MANY_PROGRAMS)
            return next(wide_enough, tiles[-1])
    return next(tile for most, tile in MANY_ROWS if most is None or rows <= most)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype, *, tile: Tile
) -> torch.Tensor:
    """Multiply [T, K] and [N, K] in tiles of this size."""
    rows, (columns, depth) = x.shape[0], weight.shape
    x, weight = x if x.stride(1) == 1 else x.contiguous(), weight.contiguous()
    out = torch.empty((rows, columns), dtype=out_dtype, device=x.device)
    if not out.numel():
        return out
    grid = (triton.cdiv(columns, tile.weight_rows), triton.cdiv(rows, tile.rows))
    sizes = {"N": columns, "K": depth, "DEPTH": tile.depth}
    launch = {"WEIGHT_ROWS": tile.weight_rows, "ROWS": tile.rows, "STAGES": tile.stages}
    arguments = (x, weight, out, rows, x.stride(0))
    if tile.split > 1:
        _stream_kernel[grid](*arguments, **sizes, SPLIT=tile.split, **launch, num_warps=tile.warps)
    else:
        _tile_kernel[grid](*arguments, **sizes, **launch, num_warps=tile.warps)
    return out
