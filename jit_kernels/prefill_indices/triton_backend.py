"""Indices of a prefill chunk in Triton: one launch for all slots, one for an index."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.decode_indices.triton_backend import window_slots
from jit_kernels.triton_launch import prepared

if TYPE_CHECKING:
    from jit_kernels.decode_indices import PageSizes
    from jit_kernels.prefill_indices import BlockList

COLUMNS = 1024


@triton.jit
def _list_blocks(
    slots_ptr: tl.tensor, base_ptr: tl.tensor, table_ptr: tl.tensor, row: tl.tensor,
    end: tl.tensor, program: tl.tensor, RATIO: tl.constexpr, PER_PAGE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Write the slots of a stretch of a row's blocks."""
    block = program * COLUMNS + tl.arange(0, COLUMNS)
    found = block < end // RATIO
    page = tl.load(table_ptr + block // PER_PAGE, mask=found, other=0)
    at = slots_ptr + tl.load(base_ptr + row) + block
    tl.store(at, page * PER_PAGE + block % PER_PAGE, mask=found)


@prepared
@triton.jit(do_not_specialize=["table_row", "programs0"])
def _slots_kernel(
    start_ptr: tl.tensor, len_ptr: tl.tensor, from_ptr: tl.tensor, table_ptr: tl.tensor,
    table_row: tl.tensor, window_ptr: tl.tensor, window_row: tl.tensor, window_pages: tl.tensor,
    old_ptr: tl.tensor, base0_ptr: tl.tensor, slots0_ptr: tl.tensor, programs0: tl.tensor,
    base1_ptr: tl.tensor, slots1_ptr: tl.tensor, SWA_PAGE: tl.constexpr, SPAN: tl.constexpr,
    POWER: tl.constexpr, RATIO0: tl.constexpr, PER_PAGE0: tl.constexpr, RATIO1: tl.constexpr,
    PER_PAGE1: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    row, program = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = tl.load(start_ptr + row)
    end = start + tl.load(len_ptr + row)
    table_ptr += row * table_row
    if program == 0:
        lowest = tl.maximum(tl.load(from_ptr + row), 0)
        column = tl.arange(0, POWER)
        seen = start - SPAN + column
        inside = column < SPAN
        slots = window_slots(
            tl.where(inside, seen, -1), lowest, window_ptr + row * window_row, window_pages,
            SWA_PAGE,
        )  # fmt: skip
        tl.store(old_ptr + row * SPAN + column, slots, mask=inside)
    elif program <= programs0:
        _list_blocks(
            slots0_ptr, base0_ptr, table_ptr, row, end, program - 1, RATIO0, PER_PAGE0, COLUMNS
        )
    else:
        program -= programs0 + 1
        _list_blocks(
            slots1_ptr, base1_ptr, table_ptr, row, end, program, RATIO1, PER_PAGE1, COLUMNS
        )


@prepared
@triton.jit(do_not_specialize=["rows", "tokens", "columns"])
def _index_kernel(
    position_ptr: tl.tensor, row_ptr: tl.tensor, start_ptr: tl.tensor, from_ptr: tl.tensor,
    base_ptr: tl.tensor, index_ptr: tl.tensor, lengths_ptr: tl.tensor, rows: tl.tensor,
    tokens: tl.tensor, columns: tl.tensor, width: tl.tensor, WINDOW: tl.constexpr,
    RATIO: tl.constexpr, CHOSEN: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    position, row = tl.load(position_ptr + token), tl.load(row_ptr + token)
    start = tl.load(start_ptr + row)
    lowest = tl.maximum(tl.load(from_ptr + row), 0)
    visible = position * 0
    first = position * 0
    if RATIO:
        visible = tl.minimum((position + 1) // RATIO, columns)
        first = rows * (WINDOW - 1) + tokens + tl.load(base_ptr + row)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    seen = position - (WINDOW - 1) + column
    chunk = token - (WINDOW - 1) + column + rows * (WINDOW - 1)
    old = row * (WINDOW - 1) + (WINDOW - 1) + seen - start
    place = tl.where(seen >= start, chunk, old)
    place = tl.where(seen >= lowest, place, -1)
    block = column - WINDOW
    if CHOSEN:
        place = tl.where(block < 0, place, -1)
    else:
        place = tl.where(block < 0, place, tl.where(block < visible, first + block, -1))
    tl.store(index_ptr + token * width + column, place.to(tl.int32), mask=column < width)
    if tl.program_id(1) == 0:
        tl.store(lengths_ptr + token, (WINDOW + visible).to(tl.int32))


def prefill_slots(
    chunk_start: torch.Tensor,
    chunk_len: torch.Tensor,
    page_table: torch.Tensor,
    window: torch.Tensor,
    window_from: torch.Tensor,
    sizes: "PageSizes",
    blocks: "tuple[BlockList, ...]",
) -> tuple[torch.Tensor, ...]:
    """Return slots; see `jit_kernels.prefill_indices.prefill_slots`."""
    rows, span, device = chunk_start.shape[0], sizes.window - 1, chunk_start.device
    old = torch.empty((rows * span,), dtype=torch.int32, device=device)
    lists = [torch.empty((part.count,), dtype=torch.int32, device=device) for part in blocks]
    if not rows:
        return (old, *lists)
    arguments: list[torch.Tensor | int] = []
    ratios: dict[str, int] = {}
    programs = [0, 0]
    for number in range(2):
        base, slots, ratio = chunk_start, old, 1
        if number < len(blocks):
            base, slots, ratio = blocks[number].base, lists[number], blocks[number].ratio
            most = page_table.shape[1] * (sizes.page // ratio)
            programs[number] = triton.cdiv(min(most, blocks[number].count), COLUMNS)
        arguments += [base.contiguous(), slots]
        ratios |= {f"RATIO{number}": ratio, f"PER_PAGE{number}": sizes.page // ratio}
    arguments.insert(2, programs[0])
    _slots_kernel[(rows, 1 + sum(programs))](
        *(chunk_start.contiguous(), chunk_len.contiguous(), window_from.contiguous()),
        *(page_table, page_table.stride(0), window, window.stride(0), window.shape[1]),
        *(old, *arguments),
        SWA_PAGE=sizes.swa_page,
        SPAN=span,
        POWER=triton.next_power_of_2(span),
        COLUMNS=COLUMNS,
        num_warps=4,
        **ratios,
    )
    return (old, *lists)


def prefill_index(
    position: torch.Tensor,
    row: torch.Tensor,
    chunk_start: torch.Tensor,
    window_from: torch.Tensor,
    shape: tuple[int, int, int],
    blocks: "BlockList | None",
    chosen: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return index and lengths; see `jit_kernels.prefill_indices.prefill_index`."""
    window, columns, width = shape
    tokens = position.shape[0]
    index = torch.empty((tokens, width), dtype=torch.int32, device=position.device)
    lengths = torch.empty((tokens,), dtype=torch.int32, device=position.device)
    if not tokens:
        return index, lengths
    used = blocks if columns else None
    stretch = min(COLUMNS, triton.next_power_of_2(width))
    _index_kernel[(tokens, triton.cdiv(width, stretch))](
        *(position.contiguous(), row.contiguous(), chunk_start.contiguous()),
        window_from.contiguous(),
        chunk_start if used is None else used.base.contiguous(),
        *(index, lengths, chunk_start.shape[0], tokens, columns, width),
        WINDOW=window,
        RATIO=0 if used is None else used.ratio,
        CHOSEN=chosen,
        COLUMNS=stretch,
        num_warps=4,
    )
    return index, lengths
