"""Products of sorted rows in Triton: programs of blocks that are not there end at once."""

import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import narrow
from jit_kernels.grouped_moe.sorted_rows import SortedRows

_WEIGHT_ROWS, _WARPS, _STAGES = 128, 8, 3


@triton.jit(do_not_specialize=["first_block", "rows"])
def _product_kernel(
    codes_ptr: tl.tensor, scales_ptr: tl.tensor, weight_ptr: tl.tensor,
    weight_scales_ptr: tl.tensor, member_ptr: tl.tensor, out_ptr: tl.tensor,
    first_block: tl.tensor, rows: tl.tensor, N: tl.constexpr, K: tl.constexpr,
    SIZE: tl.constexpr, WEIGHT_ROWS: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Write [SIZE, WEIGHT_ROWS] of one block's product.

    scales  of the region that begins at `first_block`, column by column of `rows`
    """
    inside = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    row = first_block.to(tl.int64) * SIZE + inside
    expert = tl.load(member_ptr + first_block.to(tl.int64) * SIZE + tl.program_id(1) * SIZE)
    if expert >= 0:
        BLOCKS: tl.constexpr = K // 128
        line = tl.program_id(0) * WEIGHT_ROWS + tl.arange(0, WEIGHT_ROWS)
        lane = tl.arange(0, 128)
        weight_at = weight_ptr + expert.to(tl.int64) * (N * K)
        weight_at += line[:, None] * K + lane[None, :]
        x_at = codes_ptr + row[None, :] * K + lane[:, None]
        block_row = expert * (N // 128) + tl.program_id(0) * WEIGHT_ROWS // 128
        weight_scale_at = weight_scales_ptr + block_row * BLOCKS
        scale_at = scales_ptr + inside
        sums = tl.zeros([WEIGHT_ROWS, SIZE], tl.float32)
        for block in tl.range(0, BLOCKS, num_stages=STAGES):
            w = tl.load(weight_at + block * 128)
            x = tl.load(x_at + block * 128)
            scale = tl.load(weight_scale_at + block) * tl.load(scale_at + block * rows)
            sums += tl.dot(w, x) * scale[None, :]
        total = narrow(sums, out_ptr.dtype.element_ty)
        tl.store(out_ptr + row[None, :] * N + line[:, None], total)


def multiply_region(
    rows: SortedRows,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    out: torch.Tensor,
    *,
    first: int,
) -> None:
    """Multiply the blocks whose scales these are, [region rows, K / 128], from block `first` on."""
    size, blocks = rows.size, scales.shape[0] // rows.size
    columns, depth = weight.shape[1:]
    if blocks:
        _product_kernel[(columns // _WEIGHT_ROWS, blocks)](
            rows.codes, scales, weight, weight_scales, rows.member, out, first, blocks * size,
            N=columns, K=depth, SIZE=size, WEIGHT_ROWS=_WEIGHT_ROWS, STAGES=_STAGES,
            num_warps=_WARPS,
        )  # fmt: skip
