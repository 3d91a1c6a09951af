"""Places of chosen blocks in Triton: a program takes a token."""

import torch
import triton
import triton.language as tl

from jit_kernels.triton_launch import prepared


@prepared
@triton.jit(do_not_specialize=["table_row"])
def _kernel(
    blocks_ptr: tl.tensor, blocks_token: tl.tensor, chosen: tl.tensor, table_ptr: tl.tensor,
    table_row: tl.tensor, row_ptr: tl.tensor, out_ptr: tl.tensor, out_token: tl.tensor,
    columns: tl.tensor, HAS_ROW: tl.constexpr, PAGED: tl.constexpr, PAGE_BLOCKS: tl.constexpr,
    POWER: tl.constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    row = token
    if HAS_ROW:
        row = tl.load(row_ptr + token)
    column = tl.arange(0, POWER)
    block = tl.load(blocks_ptr + token * blocks_token + column, mask=column < chosen, other=-1)
    found = block >= 0
    if PAGED:
        block = tl.where(found, block, 0)
        page = tl.load(table_ptr + row * table_row + block // PAGE_BLOCKS, mask=found, other=0)
        place = page * PAGE_BLOCKS + (block % PAGE_BLOCKS).to(tl.int32)
    else:
        place = (block + tl.load(table_ptr + row)).to(tl.int32)
    place = tl.where(found, place, -1)
    tl.store(out_ptr + token * out_token + column, place, mask=column < columns)


def translate_blocks(
    blocks: torch.Tensor,
    page_table: torch.Tensor,
    out: torch.Tensor,
    page_blocks: int,
    row: torch.Tensor | None,
) -> None:
    """Write slots; see `jit_kernels.translate_blocks.translate_blocks`."""
    _run(blocks, page_table, page_table.stride(0), out, row, page_blocks)


def place_blocks(
    blocks: torch.Tensor, base: torch.Tensor, out: torch.Tensor, row: torch.Tensor
) -> None:
    """Write places; see `jit_kernels.translate_blocks.place_blocks`."""
    _run(blocks, base.contiguous(), 0, out, row, 0)


def _run(
    blocks: torch.Tensor,
    table: torch.Tensor,
    stride: int,
    out: torch.Tensor,
    row: torch.Tensor | None,
    page_blocks: int,
) -> None:
    if not out.numel():
        return
    _kernel[(out.shape[0],)](
        *(blocks, blocks.stride(0), blocks.shape[1], table, stride),
        *(out if row is None else row.contiguous(), out, out.stride(0), out.shape[1]),
        HAS_ROW=row is not None,
        PAGED=page_blocks > 0,
        PAGE_BLOCKS=max(1, page_blocks),
        POWER=triton.next_power_of_2(out.shape[1]),
        num_warps=4,
    )
