"""Blocks of 128 tokens in Triton: sums token by token, side by side over channels and blocks.

A chunk's blocks and each state that is saved are folded from where their block or chunk begins,
every one on its own; those that are saved twice are folded twice, which is cheaper than to ask at
each token who wants its state. That launch only reads rings; a second one norms and stores the
means, and writes the banks.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from jit_kernels.compress_pool.device_blocks import normed_turned, store_record
from jit_kernels.device_numbers import NUMBERS

if TYPE_CHECKING:
    from jit_kernels.compress_pool import BlockPages, ChunkTokens, EndedBlocks, StateSaves

WARPS = 4
# Channels of a program that folds: few, since only many of them at work hide a token's latency.
CHANNELS = 32
# Tokens whose rows are asked for at once, and the registers that takes: with fewer, which the
# assembler chooses for small programs, loads wait for sums.
AHEAD, REGISTERS = 32, 224


@triton.jit
def _fold(
    greatest: tl.tensor, total: tl.tensor, weighted: tl.tensor, kv: tl.tensor, gate: tl.tensor
) -> tl.tensor:
    """Return the state after one more token."""
    higher = tl.maximum(greatest, gate)
    decay, weight = tl.exp(greatest - higher), tl.exp(gate - higher)
    return higher, total * decay + weight, weighted * decay + weight * kv


@triton.jit
def _load_state(
    state_ptr: tl.tensor, bank: tl.tensor, column: tl.tensor, mask: tl.tensor, D: tl.constexpr
) -> tl.tensor:
    """Return (maximum, sum, weighted sum) of a bank; those of an empty block where masked."""
    at = state_ptr + bank * (3 * D) + column
    greatest = tl.load(at, mask=mask, other=float("-inf"))
    total = tl.load(at + D, mask=mask, other=0.0)
    return greatest, total, tl.load(at + 2 * D, mask=mask, other=0.0)


@triton.jit
def _store_state(
    state_ptr: tl.tensor, bank: tl.tensor, column: tl.tensor, mask: tl.tensor, greatest: tl.tensor,
    total: tl.tensor, weighted: tl.tensor, D: tl.constexpr,
) -> None:  # fmt: skip
    at = state_ptr + bank * (3 * D) + column
    tl.store(at, greatest, mask=mask)
    tl.store(at + D, total, mask=mask)
    tl.store(at + 2 * D, weighted, mask=mask)


@triton.jit
def _finish(
    total: tl.tensor, weighted: tl.tensor, slot: tl.tensor, weight_ptr: tl.tensor,
    turn_ptr: tl.tensor, pages_ptr: tl.tensor, eps: tl.tensor, D: tl.constexpr,
    WIDTH: tl.constexpr, TURNED: tl.constexpr, NUMBER: tl.constexpr, PAGE_ROWS: tl.constexpr,
    DATA: tl.constexpr, SCALE: tl.constexpr, PAGE: tl.constexpr,
) -> None:  # fmt: skip
    """Store the record of a whole block."""
    real = tl.arange(0, WIDTH) < D
    mean = tl.where(real, weighted, 0.0) / tl.where(real, total, 1.0)
    x = normed_turned(mean, weight_ptr, turn_ptr, eps, D, TURNED, WIDTH)
    store_record(pages_ptr, slot, x, D, TURNED, NUMBER, PAGE_ROWS, DATA, SCALE, PAGE, WIDTH)


@triton.jit
def _tokens_kernel(
    rows_ptr: tl.tensor, row_stride: tl.tensor, state_ptr: tl.tensor, ape_ptr: tl.tensor,
    position_ptr: tl.tensor, ring_ptr: tl.tensor, slots_ptr: tl.tensor, rotation_ptr: tl.tensor,
    weight_ptr: tl.tensor, pages_ptr: tl.tensor, eps: tl.tensor, BANKS: tl.constexpr,
    D: tl.constexpr, WIDTH: tl.constexpr, TURNED: tl.constexpr, NUMBER: tl.constexpr,
    PAGE_ROWS: tl.constexpr, DATA: tl.constexpr, SCALE: tl.constexpr, PAGE: tl.constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + token)
    if position >= 0:
        first = tl.load(ring_ptr + token).to(tl.int64) * BANKS
        slot = tl.load(slots_ptr + token)
        phase = position % 128
        column = tl.arange(0, WIDTH)
        real = column < D
        row_ptr = rows_ptr + token * row_stride + column
        kv = tl.load(row_ptr, mask=real, other=0.0)
        ape = tl.load(ape_ptr + phase * (2 * D) + D + column, mask=real, other=0.0)
        gate = tl.load(row_ptr + D, mask=real, other=0.0) + ape
        before = first + (position + BANKS - 1) % BANKS
        greatest, total, weighted = _load_state(state_ptr, before, column, real & (phase > 0), D)
        greatest, total, weighted = _fold(greatest, total, weighted, kv, gate)
        bank = first + position % BANKS
        _store_state(state_ptr, bank, column, real, greatest, total, weighted, D)
        if slot > 0:
            _finish(
                total, weighted, slot, weight_ptr, rotation_ptr + token * (2 * TURNED), pages_ptr,
                eps, D, WIDTH, TURNED, NUMBER, PAGE_ROWS, DATA, SCALE, PAGE,
            )  # fmt: skip


@triton.jit(do_not_specialize=["blocks", "old"])
def _fold_kernel(
    rows_ptr: tl.tensor, row_stride: tl.tensor, state_ptr: tl.tensor, ape_ptr: tl.tensor,
    position_ptr: tl.tensor, row_ptr: tl.tensor, start_ptr: tl.tensor, ring_ptr: tl.tensor,
    from_ptr: tl.tensor, last_ptr: tl.tensor, slots_ptr: tl.tensor, blocks: tl.tensor,
    source_ptr: tl.tensor, old: tl.tensor, folded_ptr: tl.tensor, BANKS: tl.constexpr,
    D: tl.constexpr, CHANNELS: tl.constexpr, AHEAD: tl.constexpr,
) -> None:  # fmt: skip
    """Fold up to one token: the last of a block, or one whose state is saved."""
    nth = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    real = column < D
    if nth < blocks:
        wanted = tl.load(slots_ptr + nth) > 0
        token = tl.load(last_ptr + nth, mask=wanted, other=-1)
    else:
        token = tl.load(source_ptr + nth - blocks)
        if (token >= 0) & (token < old):
            ring = tl.load(ring_ptr + token // BANKS).to(tl.int64)
            greatest, total, weighted = _load_state(
                state_ptr, ring * BANKS + token % BANKS, column, real, D
            )  # fmt: skip
            _store_state(folded_ptr, nth, column, real, greatest, total, weighted, D)
        token = tl.where(token >= old, token - old, -1)
    if token >= 0:
        row = tl.load(row_ptr + token)
        position, start = tl.load(position_ptr + token), tl.load(start_ptr + row)
        begin = tl.maximum(position - position % 128, start)
        phase = begin % 128
        kept = (phase > 0) & (begin > tl.load(from_ptr + row))
        first = tl.load(ring_ptr + row).to(tl.int64) * BANKS
        before = first + (begin + BANKS - 1) % BANKS
        greatest, total, weighted = _load_state(state_ptr, before, column, real & kept, D)
        count = (position - begin + 1).to(tl.int32)
        row_at = rows_ptr + (token - (position - begin)) * row_stride + column
        ape_at = ape_ptr + phase * (2 * D) + D + column
        # A token that is none changes no bit: its weight is zero, the decay one.
        absent = tl.where(real, float("-inf"), 0.0)
        done = count * 0
        while done < count:
            for ahead in tl.static_range(AHEAD):
                live = real & (done + ahead < count)
                kv = tl.load(row_at + ahead * row_stride, mask=live, other=0.0)
                ape = tl.load(ape_at + ahead * (2 * D), mask=live, other=0.0)
                gate = tl.load(row_at + ahead * row_stride + D, mask=live, other=absent)
                greatest, total, weighted = _fold(greatest, total, weighted, kv, gate + ape)
            done += AHEAD
            row_at += AHEAD * row_stride
            ape_at += AHEAD * 2 * D
        _store_state(folded_ptr, nth, column, real, greatest, total, weighted, D)


@triton.jit(do_not_specialize=["blocks"])
def _settle_kernel(
    folded_ptr: tl.tensor, state_ptr: tl.tensor, slots_ptr: tl.tensor, blocks: tl.tensor,
    source_ptr: tl.tensor, target_ptr: tl.tensor, rotation_ptr: tl.tensor, weight_ptr: tl.tensor,
    pages_ptr: tl.tensor, eps: tl.tensor, D: tl.constexpr, WIDTH: tl.constexpr,
    TURNED: tl.constexpr, NUMBER: tl.constexpr, PAGE_ROWS: tl.constexpr, DATA: tl.constexpr,
    SCALE: tl.constexpr, PAGE: tl.constexpr,
) -> None:  # fmt: skip
    """Store one record, or write one bank."""
    nth = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    real = column < D
    if nth < blocks:
        slot = tl.load(slots_ptr + nth)
        if slot > 0:
            _, total, weighted = _load_state(folded_ptr, nth, column, real, D)
            _finish(
                total, weighted, slot, weight_ptr, rotation_ptr + nth * (2 * TURNED), pages_ptr,
                eps, D, WIDTH, TURNED, NUMBER, PAGE_ROWS, DATA, SCALE, PAGE,
            )  # fmt: skip
    elif tl.load(source_ptr + nth - blocks) >= 0:
        greatest, total, weighted = _load_state(folded_ptr, nth, column, real, D)
        bank = tl.load(target_ptr + nth - blocks)
        _store_state(state_ptr, bank, column, real, greatest, total, weighted, D)


def fold_tokens(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    position: torch.Tensor,
    ring: torch.Tensor,
    ended: "EndedBlocks",
    pages: "BlockPages",
    eps: float,
    record_format: str,
) -> None:
    """Advance decoding rows; see `jit_kernels.compress_fold.fold_tokens`."""
    if not rows.shape[0]:
        return
    _tokens_kernel[(rows.shape[0],)](
        *(rows, rows.stride(0), state, ape, position.contiguous(), ring.contiguous()),
        *(ended.slots.contiguous(), ended.rotation.contiguous(), pages.weight, pages.pages, eps),
        BANKS=state.shape[1],
        **_constants(ended, pages, record_format),
    )


def fold_chunks(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    tokens: "ChunkTokens",
    window_from: torch.Tensor,
    last: torch.Tensor,
    ended: "EndedBlocks",
    saves: "StateSaves",
    pages: "BlockPages",
    eps: float,
    record_format: str,
) -> None:
    """Advance chunks; see `jit_kernels.compress_fold.fold_chunks`."""
    blocks, width, banks = last.shape[0], state.shape[3], state.shape[1]
    parts = blocks + saves.source.shape[0]
    if not parts:
        return
    folded = torch.empty((parts, 3, width), dtype=state.dtype, device=state.device)
    slots, source = ended.slots.contiguous(), saves.source.contiguous()
    _fold_kernel[(parts, triton.cdiv(width, CHANNELS))](
        *(rows, rows.stride(0), state, ape, tokens.position.contiguous(), tokens.row.contiguous()),
        *(tokens.start.contiguous(), tokens.ring.contiguous(), window_from.contiguous()),
        *(last.contiguous(), slots, blocks, source, tokens.ring.shape[0] * banks, folded),
        BANKS=banks,
        D=width,
        CHANNELS=CHANNELS,
        AHEAD=AHEAD,
        num_warps=1,
        maxnreg=REGISTERS,
        enable_fp_fusion=False,
    )
    _settle_kernel[(parts,)](
        *(folded, state, slots, blocks, source, saves.target.contiguous()),
        *(ended.rotation.contiguous(), pages.weight, pages.pages, eps),
        **_constants(ended, pages, record_format),
    )


def _constants(ended: "EndedBlocks", pages: "BlockPages", record_format: str) -> dict[str, object]:
    """Return what a kernel that stores records is compiled for."""
    width, layout = pages.weight.shape[0], pages.layout
    least = 64 if record_format == "fp8" else 2
    return {
        "D": width,
        "WIDTH": max(least, triton.next_power_of_2(width)),
        "TURNED": ended.rotation.shape[2],
        "NUMBER": NUMBERS.get(record_format),
        "PAGE_ROWS": layout.page_rows,
        "DATA": layout.data_bytes,
        "SCALE": layout.scale_bytes,
        "PAGE": layout.page_bytes,
        "num_warps": WARPS,
        "enable_fp_fusion": False,
    }
