"""Blocks of 4 tokens in Triton: a program makes one block of one branch, from rows to bytes.

Decoding rows take one launch: the state row that a token writes is none of the 8 that its block
reads. Chunks take two: the first stores blocks and fetches what is to be saved, and only the second
writes rings.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.compress_pool.device_blocks import normed_turned, store_key, store_record
from jit_kernels.device_numbers import NUMBERS

if TYPE_CHECKING:
    from jit_kernels.compress_pool import BlockPages, ChunkTokens, EndedBlocks, StateSaves

WARPS = 4
# Columns of a state row that a program copies.
COPIED = 1024


@triton.jit
def _slot(
    rows_ptr: tl.tensor, row_stride: tl.tensor, state_ptr: tl.tensor, ape_ptr: tl.tensor,
    token: tl.tensor, position: tl.tensor, start: tl.tensor, ring: tl.tensor, BACK: tl.constexpr,
    FIRST: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, SPAN: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return (kv, gate) that a block takes from the token BACK before its last one."""
    place = position - BACK
    fresh = place >= start
    # Of the first four tokens a block takes series a, of the others series b.
    kv = FIRST + tl.arange(0, WIDTH)
    if BACK < 4:
        kv += CHANNELS
    gate = kv + 2 * CHANNELS
    real = tl.arange(0, WIDTH) < CHANNELS
    found = real & (place >= 0)
    row_ptr = rows_ptr + (token - BACK) * row_stride
    kept_ptr = state_ptr + (ring * SPAN + place % SPAN) * COLUMNS
    from_ptr = tl.where(fresh, row_ptr, kept_ptr)
    ape = tl.load(ape_ptr + place % 4 * COLUMNS + gate, mask=found & fresh, other=0.0)
    value = tl.load(from_ptr + kv, mask=found, other=0.0)
    # Channels that are none weigh as much as anything.
    absent = tl.where(real, float("-inf"), 0.0)
    return value, tl.load(from_ptr + gate, mask=found, other=absent) + ape


@triton.jit
def _mean(
    rows_ptr: tl.tensor, row_stride: tl.tensor, state_ptr: tl.tensor, ape_ptr: tl.tensor,
    token: tl.tensor, position: tl.tensor, start: tl.tensor, ring: tl.tensor,
    FIRST: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, SPAN: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the mean of the block that ends with a token, added up as in the reference."""
    k0, g0 = _slot(
        rows_ptr, row_stride, state_ptr, ape_ptr, token, position, start, ring, 7, FIRST, CHANNELS,
        COLUMNS, SPAN, WIDTH,
    )  # fmt: skip
    k1, g1 = _slot(
        rows_ptr, row_stride, state_ptr, ape_ptr, token, position, start, ring, 6, FIRST, CHANNELS,
        COLUMNS, SPAN, WIDTH,
    )  # fmt: skip
    k2, g2 = _slot(
        rows_ptr, row_stride, state_ptr, ape_ptr, token, position, start, ring, 5, FIRST, CHANNELS,
        COLUMNS, SPAN, WIDTH,
    )  # fmt: skip
    k3, g3 = _slot(
        rows_ptr, row_stride, state_ptr, ape_ptr, token, position, start, ring, 4, FIRST, CHANNELS,
        COLUMNS, SPAN, WIDTH,
    )  # fmt: skip
    k4, g4 = _slot(
        rows_ptr, row_stride, state_ptr, ape_ptr, token, position, start, ring, 3, FIRST, CHANNELS,
        COLUMNS, SPAN, WIDTH,
    )  # fmt: skip
    k5, g5 = _slot(
        rows_ptr, row_stride, state_ptr, ape_ptr, token, position, start, ring, 2, FIRST, CHANNELS,
        COLUMNS, SPAN, WIDTH,
    )  # fmt: skip
    k6, g6 = _slot(
        rows_ptr, row_stride, state_ptr, ape_ptr, token, position, start, ring, 1, FIRST, CHANNELS,
        COLUMNS, SPAN, WIDTH,
    )  # fmt: skip
    k7, g7 = _slot(
        rows_ptr, row_stride, state_ptr, ape_ptr, token, position, start, ring, 0, FIRST, CHANNELS,
        COLUMNS, SPAN, WIDTH,
    )  # fmt: skip
    greatest = tl.maximum(
        tl.maximum(tl.maximum(g0, g1), tl.maximum(g2, g3)),
        tl.maximum(tl.maximum(g4, g5), tl.maximum(g6, g7)),
    )
    p0, p1, p2, p3 = (
        tl.exp(g0 - greatest), tl.exp(g1 - greatest), tl.exp(g2 - greatest), tl.exp(g3 - greatest),
    )  # fmt: skip
    p4, p5, p6, p7 = (
        tl.exp(g4 - greatest), tl.exp(g5 - greatest), tl.exp(g6 - greatest), tl.exp(g7 - greatest),
    )  # fmt: skip
    total = ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7))
    even = (p0 * k0 + p4 * k4) + (p2 * k2 + p6 * k6)
    odd = (p1 * k1 + p5 * k5) + (p3 * k3 + p7 * k7)
    return (even + odd) / total


@triton.jit
def _keep(
    rows_ptr: tl.tensor, row_stride: tl.tensor, ape_ptr: tl.tensor, target_ptr: tl.tensor,
    token: tl.tensor, position: tl.tensor, FIRST: tl.constexpr, CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Write one branch of what a token leaves to a state row."""
    column = tl.arange(0, 4 * WIDTH)
    real = column < 4 * CHANNELS
    at = FIRST + column
    gate = real & (column >= 2 * CHANNELS)
    ape = tl.load(ape_ptr + position % 4 * COLUMNS + at, mask=gate, other=0.0)
    tl.store(target_ptr + at, tl.load(rows_ptr + token * row_stride + at, mask=real) + ape, real)


@triton.jit
def _tokens_kernel(
    rows_ptr: tl.tensor, row_stride: tl.tensor, state_ptr: tl.tensor, ape_ptr: tl.tensor,
    position_ptr: tl.tensor, ring_ptr: tl.tensor, slots_ptr: tl.tensor, rotation_ptr: tl.tensor,
    main_ptr: tl.tensor, main_weight_ptr: tl.tensor, index_ptr: tl.tensor,
    index_weight_ptr: tl.tensor, eps: tl.tensor, D: tl.constexpr, D_WIDTH: tl.constexpr,
    C: tl.constexpr, C_WIDTH: tl.constexpr, SPAN: tl.constexpr, TURNED: tl.constexpr,
    NUMBER: tl.constexpr, MAIN_ROWS: tl.constexpr, MAIN_DATA: tl.constexpr,
    MAIN_SCALE: tl.constexpr, MAIN_PAGE: tl.constexpr, INDEX_ROWS: tl.constexpr,
    INDEX_DATA: tl.constexpr, INDEX_SCALE: tl.constexpr, INDEX_PAGE: tl.constexpr,
    LEVELS: tl.constexpr, NORM: tl.constexpr,
) -> None:  # fmt: skip
    COLUMNS: tl.constexpr = 4 * (D + C)
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + token)
    if position >= 0:
        ring = tl.load(ring_ptr + token).to(tl.int64)
        slot = tl.load(slots_ptr + token)
        target_ptr = state_ptr + (ring * SPAN + position % SPAN) * COLUMNS
        turn_ptr = rotation_ptr + token * (2 * TURNED)
        if tl.program_id(1) == 0:
            _keep(
                rows_ptr, row_stride, ape_ptr, target_ptr, token, position, 0, D, COLUMNS, D_WIDTH
            )
            if slot > 0:
                x = _mean(
                    rows_ptr, row_stride, state_ptr, ape_ptr, token, position, position, ring, 0,
                    D, COLUMNS, SPAN, D_WIDTH,
                )  # fmt: skip
                x = normed_turned(x, main_weight_ptr, turn_ptr, eps, D, TURNED, D_WIDTH)
                store_record(
                    main_ptr, slot, x, D, TURNED, NUMBER, MAIN_ROWS, MAIN_DATA, MAIN_SCALE,
                    MAIN_PAGE, D_WIDTH,
                )  # fmt: skip
        else:
            _keep(
                rows_ptr, row_stride, ape_ptr, target_ptr, token, position, 4 * D, C, COLUMNS,
                C_WIDTH,
            )  # fmt: skip
            if slot > 0:
                key = _mean(
                    rows_ptr, row_stride, state_ptr, ape_ptr, token, position, position, ring,
                    4 * D, C, COLUMNS, SPAN, C_WIDTH,
                )  # fmt: skip
                key = normed_turned(key, index_weight_ptr, turn_ptr, eps, C, TURNED, C_WIDTH)
                store_key(
                    index_ptr, slot, key, C, NUMBER, INDEX_ROWS, INDEX_DATA, INDEX_SCALE,
                    INDEX_PAGE, C_WIDTH, LEVELS, NORM,
                )  # fmt: skip


@triton.jit(do_not_specialize=["blocks", "old"])
def _chunks_kernel(
    rows_ptr: tl.tensor, row_stride: tl.tensor, state_ptr: tl.tensor, ape_ptr: tl.tensor,
    position_ptr: tl.tensor, row_ptr: tl.tensor, start_ptr: tl.tensor, ring_ptr: tl.tensor,
    last_ptr: tl.tensor, slots_ptr: tl.tensor, rotation_ptr: tl.tensor, blocks: tl.tensor,
    source_ptr: tl.tensor, old: tl.tensor, fetched_ptr: tl.tensor, main_ptr: tl.tensor,
    main_weight_ptr: tl.tensor, index_ptr: tl.tensor, index_weight_ptr: tl.tensor, eps: tl.tensor,
    D: tl.constexpr, D_WIDTH: tl.constexpr, C: tl.constexpr, C_WIDTH: tl.constexpr,
    SPAN: tl.constexpr, TURNED: tl.constexpr, NUMBER: tl.constexpr, MAIN_ROWS: tl.constexpr,
    MAIN_DATA: tl.constexpr, MAIN_SCALE: tl.constexpr, MAIN_PAGE: tl.constexpr,
    INDEX_ROWS: tl.constexpr, INDEX_DATA: tl.constexpr, INDEX_SCALE: tl.constexpr,
    INDEX_PAGE: tl.constexpr, LEVELS: tl.constexpr, NORM: tl.constexpr,
) -> None:  # fmt: skip
    COLUMNS: tl.constexpr = 4 * (D + C)
    nth = tl.program_id(0).to(tl.int64)
    if nth < blocks:
        slot, token = tl.load(slots_ptr + nth), tl.load(last_ptr + nth)
        if slot > 0:
            row = tl.load(row_ptr + token)
            position, start = tl.load(position_ptr + token), tl.load(start_ptr + row)
            ring = tl.load(ring_ptr + row).to(tl.int64)
            turn_ptr = rotation_ptr + nth * (2 * TURNED)
            if tl.program_id(1) == 0:
                x = _mean(
                    rows_ptr, row_stride, state_ptr, ape_ptr, token, position, start, ring, 0, D,
                    COLUMNS, SPAN, D_WIDTH,
                )  # fmt: skip
                x = normed_turned(x, main_weight_ptr, turn_ptr, eps, D, TURNED, D_WIDTH)
                store_record(
                    main_ptr, slot, x, D, TURNED, NUMBER, MAIN_ROWS, MAIN_DATA, MAIN_SCALE,
                    MAIN_PAGE, D_WIDTH,
                )  # fmt: skip
            else:
                key = _mean(
                    rows_ptr, row_stride, state_ptr, ape_ptr, token, position, start, ring, 4 * D,
                    C, COLUMNS, SPAN, C_WIDTH,
                )  # fmt: skip
                key = normed_turned(key, index_weight_ptr, turn_ptr, eps, C, TURNED, C_WIDTH)
                store_key(
                    index_ptr, slot, key, C, NUMBER, INDEX_ROWS, INDEX_DATA, INDEX_SCALE,
                    INDEX_PAGE, C_WIDTH, LEVELS, NORM,
                )  # fmt: skip
    else:
        source = tl.load(source_ptr + nth - blocks)
        target_ptr = fetched_ptr + (nth - blocks) * COLUMNS
        if source >= old:
            token = source - old
            position = tl.load(position_ptr + token)
            if tl.program_id(1) == 0:
                _keep(
                    rows_ptr, row_stride, ape_ptr, target_ptr, token, position, 0, D, COLUMNS,
                    D_WIDTH,
                )  # fmt: skip
            else:
                _keep(
                    rows_ptr, row_stride, ape_ptr, target_ptr, token, position, 4 * D, C, COLUMNS,
                    C_WIDTH,
                )  # fmt: skip
        elif source >= 0:
            ring = tl.load(ring_ptr + source // SPAN).to(tl.int64)
            kept_ptr = state_ptr + (ring * SPAN + source % SPAN) * COLUMNS
            if tl.program_id(1) == 0:
                column = tl.arange(0, 4 * D_WIDTH)
                real = column < 4 * D
                tl.store(target_ptr + column, tl.load(kept_ptr + column, mask=real), mask=real)
            else:
                at = 4 * D + tl.arange(0, 4 * C_WIDTH)
                some = at < COLUMNS
                tl.store(target_ptr + at, tl.load(kept_ptr + at, mask=some), mask=some)


@triton.jit
def write_entries_kernel(
    fetched_ptr: tl.tensor, source_ptr: tl.tensor, target_ptr: tl.tensor, state_ptr: tl.tensor,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Write one fetched entry of COLUMNS numbers to its ring, unless it has no source."""
    nth = tl.program_id(0).to(tl.int64)
    if tl.load(source_ptr + nth) >= 0:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        real = column < COLUMNS
        entry = tl.load(fetched_ptr + nth * COLUMNS + column, mask=real)
        tl.store(state_ptr + tl.load(target_ptr + nth) * COLUMNS + column, entry, mask=real)


def pool_tokens(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    position: torch.Tensor,
    ring: torch.Tensor,
    ended: "EndedBlocks",
    main: "BlockPages",
    index: "BlockPages",
    eps: float,
    record_format: str,
) -> None:
    """Advance decoding rows; see `jit_kernels.compress_pool.pool_tokens`."""
    if not rows.shape[0]:
        return
    _tokens_kernel[(rows.shape[0], 2)](
        *(rows, rows.stride(0), state, ape, position.contiguous(), ring.contiguous()),
        *(ended.slots.contiguous(), ended.rotation.contiguous()),
        *(main.pages, main.weight, index.pages, index.weight, eps),
        **_constants(state, ended, main, index, record_format),
    )


def pool_chunks(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    tokens: "ChunkTokens",
    last: torch.Tensor,
    ended: "EndedBlocks",
    saves: "StateSaves",
    main: "BlockPages",
    index: "BlockPages",
    eps: float,
    record_format: str,
) -> None:
    """Advance chunks; see `jit_kernels.compress_pool.pool_chunks`."""
    blocks, entries, columns = last.shape[0], saves.source.shape[0], state.shape[2]
    if blocks + entries == 0:
        return
    fetched = torch.empty((entries, columns), dtype=state.dtype, device=state.device)
    _chunks_kernel[(blocks + entries, 2)](
        *(rows, rows.stride(0), state, ape, tokens.position.contiguous(), tokens.row.contiguous()),
        *(tokens.start.contiguous(), tokens.ring.contiguous(), last.contiguous()),
        *(ended.slots.contiguous(), ended.rotation.contiguous(), blocks),
        *(saves.source.contiguous(), tokens.ring.shape[0] * state.shape[1], fetched),
        *(main.pages, main.weight, index.pages, index.weight, eps),
        **_constants(state, ended, main, index, record_format),
    )
    write_entries(fetched, saves, state)


def write_entries(fetched: torch.Tensor, saves: "StateSaves", state: torch.Tensor) -> None:
    """Write fetched entries [s, N] to the rings of `state` [U, span, N], in place."""
    entries, columns = fetched.shape
    if entries:
        write_entries_kernel[(entries, triton.cdiv(columns, COPIED))](
            *(fetched, saves.source.contiguous(), saves.target.contiguous(), state),
            COLUMNS=columns,
            BLOCK=COPIED,
            num_warps=WARPS,
        )


def _constants(
    state: torch.Tensor,
    ended: "EndedBlocks",
    main: "BlockPages",
    index: "BlockPages",
    record_format: str,
) -> dict[str, object]:
    """Return what a kernel is compiled for."""
    width, key = main.weight.shape[0], index.weight.shape[0]
    least = 64 if record_format == "fp8" else 2
    padded = max(2, triton.next_power_of_2(key))
    return {
        "D": width,
        "D_WIDTH": max(least, triton.next_power_of_2(width)),
        "C": key,
        "C_WIDTH": padded,
        "SPAN": state.shape[1],
        "TURNED": ended.rotation.shape[2],
        "NUMBER": NUMBERS.get(record_format),
        "MAIN_ROWS": main.layout.page_rows,
        "MAIN_DATA": main.layout.data_bytes,
        "MAIN_SCALE": main.layout.scale_bytes,
        "MAIN_PAGE": main.layout.page_bytes,
        "INDEX_ROWS": index.layout.page_rows,
        "INDEX_DATA": index.layout.data_bytes,
        "INDEX_SCALE": index.layout.scale_bytes,
        "INDEX_PAGE": index.layout.page_bytes,
        "LEVELS": padded.bit_length() - 1,
        "NORM": key**-0.5,
        "num_warps": WARPS,
        "enable_fp_fusion": False,
    }
