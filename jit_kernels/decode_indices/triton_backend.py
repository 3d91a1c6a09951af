"""Slots of decoding rows in Triton, in one launch.

The first program of a row does its window and single numbers, the next ones cosines or sines of a
rotation each, since those of large angles take long, and each other one a stretch of columns.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.decode_indices import KEY_TILE
from jit_kernels.rope.triton_backend import cosines, signed_sines

if TYPE_CHECKING:
    from jit_kernels.decode_indices import PageSizes

COLUMNS = 1024
# Rotations of a row.
TURNS = 4


@triton.jit
def window_slots(
    seen: tl.tensor, lowest: tl.tensor, window_ptr: tl.tensor, pages: tl.tensor,
    SWA_PAGE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return SWA slots of positions, -1 for those before `lowest`, which is not negative."""
    found = seen >= lowest
    at = tl.where(found, seen, 0)
    page = tl.load(window_ptr + at // SWA_PAGE % pages, mask=found, other=0)
    return tl.where(found, page * SWA_PAGE + (at % SWA_PAGE).to(tl.int32), -1)


@triton.jit
def _finished(
    place: tl.tensor, page: tl.tensor, PAGE: tl.constexpr, RATIO: tl.constexpr
) -> tl.tensor:
    """Return the full-page slot of the block of RATIO that ends at a position; 0: none does."""
    slot = page * (PAGE // RATIO) + place % PAGE // RATIO
    return tl.where(place % RATIO == RATIO - 1, slot, 0)


@triton.jit
def _turn(
    nth: tl.tensor, row: tl.tensor, rows: tl.tensor, position: tl.tensor, angle_ptr: tl.tensor,
    out_ptr: tl.tensor, channels: tl.tensor, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Write cosines, if `nth` is even, or sines of rotation nth // 2 of a row."""
    turn = nth // 2
    position -= tl.where(turn == 2, 3, tl.where(turn == 3, 127, 0))
    channel = tl.arange(0, WIDTH)
    mask = channel < channels
    angle = tl.load(angle_ptr + tl.where(turn == 0, 0, channels) + channel, mask=mask, other=0.0)
    at = out_ptr + ((turn * rows + row) * 2 + nth % 2) * channels + channel
    if nth % 2 == 0:
        tl.store(at, cosines(position, angle), mask=mask)
    else:
        tl.store(at, signed_sines(position, angle, channel), mask=mask)


@triton.jit(do_not_specialize=["top_k"])
def _kernel(
    position_ptr: tl.tensor, page_table_ptr: tl.tensor, table_row: tl.tensor,
    window_ptr: tl.tensor, window_row: tl.tensor, window_pages: tl.tensor,
    window_from_ptr: tl.tensor, window_slots_ptr: tl.tensor, swa_slot_ptr: tl.tensor,
    c4_slot_ptr: tl.tensor, c128_slot_ptr: tl.tensor, c4_blocks_ptr: tl.tensor,
    c128_lengths_ptr: tl.tensor, c128_slots_ptr: tl.tensor, c4_visible_ptr: tl.tensor,
    c4_chosen_ptr: tl.tensor, rotations_ptr: tl.tensor, columns: tl.tensor, top_k: tl.tensor,
    angle_ptr: tl.tensor, channels: tl.tensor, HAS_FROM: tl.constexpr, PAGE: tl.constexpr,
    SWA_PAGE: tl.constexpr, WINDOW: tl.constexpr, PADDED: tl.constexpr, POWER: tl.constexpr,
    COLUMNS: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    row, program = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(position_ptr + row)
    table_ptr = page_table_ptr + row * table_row
    blocks = (position + 1) // 128
    if program == 0:
        lowest = position * 0
        if HAS_FROM:
            lowest = tl.maximum(tl.load(window_from_ptr + row), 0)
        column = tl.arange(0, POWER)
        seen = tl.where(column < WINDOW, position - (WINDOW - 1) + column, -1)
        window_ptr += row * window_row
        slots = window_slots(seen, lowest, window_ptr, window_pages, SWA_PAGE)
        tl.store(window_slots_ptr + row * PADDED + column, slots, mask=column < PADDED)
        live = position >= 0
        place = tl.maximum(position, 0)
        own = tl.load(window_ptr + place // SWA_PAGE % window_pages, mask=live, other=0)
        own = own.to(tl.int64) * SWA_PAGE + place % SWA_PAGE
        full = tl.load(table_ptr + place // PAGE, mask=live, other=0).to(tl.int64)
        tl.store(swa_slot_ptr + row, tl.where(live, own, 0))
        tl.store(c4_slot_ptr + row, tl.where(live, _finished(place, full, PAGE, 4), 0))
        tl.store(c128_slot_ptr + row, tl.where(live, _finished(place, full, PAGE, 128), 0))
        seen_4 = (position + 1) // 4
        tl.store(c4_blocks_ptr + row, seen_4.to(tl.int32))
        tl.store(c4_visible_ptr + row, seen_4)
        tl.store(c4_chosen_ptr + row, tl.minimum(seen_4, top_k).to(tl.int32))
        tl.store(c128_lengths_ptr + row, blocks.to(tl.int32))
    elif program <= PARTS:
        _turn(
            program - 1, row, tl.num_programs(0), position, angle_ptr, rotations_ptr, channels,
            WIDTH,
        )  # fmt: skip
    else:
        PER_PAGE: tl.constexpr = PAGE // 128
        block = (program - 1 - PARTS) * COLUMNS + tl.arange(0, COLUMNS)
        found = block < blocks
        page = tl.load(table_ptr + block // PER_PAGE, mask=found, other=0)
        listed = tl.where(found, page * PER_PAGE + block % PER_PAGE, -1)
        tl.store(c128_slots_ptr + row * columns + block, listed, mask=block < columns)


def decode_indices(
    position: torch.Tensor,
    page_table: torch.Tensor,
    window: torch.Tensor,
    window_from: torch.Tensor | None,
    sizes: "PageSizes",
    c128_columns: int,
    top_k: int,
    angles: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return slots in the order of `DecodeIndices`; see `jit_kernels.decode_indices`."""
    rows, padded = position.shape[0], triton.cdiv(sizes.window, KEY_TILE) * KEY_TILE
    channels, where = angles.shape[1], position.device
    narrow = [(rows, padded), (rows,), (rows,), (rows, c128_columns), (rows,)]
    slots, c4, c128, columns, chosen = (
        torch.empty(shape, dtype=torch.int32, device=where) for shape in narrow
    )
    swa, c4_slot, c128_slot, visible = (
        torch.empty((rows,), dtype=torch.int64, device=where) for _ in range(4)
    )
    turns = torch.empty((TURNS, rows, 2, channels), dtype=torch.float32, device=where)
    result = (slots, swa, c4_slot, c128_slot, c4, c128, columns, visible, chosen, turns)
    if not rows:
        return result
    parts = 2 * TURNS if channels else 0
    _kernel[(rows, 1 + parts + triton.cdiv(c128_columns, COLUMNS))](
        *(position.contiguous(), page_table, page_table.stride(0)),
        *(window, window.stride(0), window.shape[1]),
        *(position if window_from is None else window_from.contiguous(), *result),
        *(c128_columns, top_k, angles.contiguous(), channels),
        HAS_FROM=window_from is not None,
        PAGE=sizes.page,
        SWA_PAGE=sizes.swa_page,
        WINDOW=sizes.window,
        PADDED=padded,
        POWER=triton.next_power_of_2(padded),
        COLUMNS=COLUMNS,
        PARTS=parts,
        WIDTH=triton.next_power_of_2(max(channels, 1)),
        num_warps=4,
    )
    return result
