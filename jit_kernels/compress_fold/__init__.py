"""Blocks of 128 tokens, folded token by token, from projected rows to records in pages.

A row is kv, then gate, D columns each. The state of a pending block is its maximum, sum and
weighted sum. Token t reads bank (t - 1) % banks of its ring and writes bank t % banks; a block
begins anew at multiples of 128. The arithmetic of one token is that of
`jit_kernels.compress_kv.fold_blocks`, always in the order of the tokens.
"""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.compress_fold.reference import RATIO
from jit_kernels.compress_pool import (
    BlockPages,
    ChunkTokens,
    EndedBlocks,
    StateSaves,
    check_ended,
    check_pages,
    check_saves,
    check_tokens,
)
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.kv_records import RECORD_DTYPES, packed_record_bytes
from jit_kernels.registry import Backend, select

__all__ = ["RATIO", "fold_chunks", "fold_tokens"]


_MODULE = "jit_kernels.compress_fold"


def _selected(op: str) -> Callable[..., None]:
    return select(
        op,
        [
            # Both ops must run the same one, or chunks have other bits than their tokens.
            Backend("cuda", f"{_MODULE}.cuda_backend:{op}", why_no_hopper, "cuda"),
            Backend("reference", f"{_MODULE}.reference:{op}"),
        ],
    )


_fold_tokens = _selected("fold_tokens")
_fold_chunks = _selected("fold_chunks")


def fold_tokens(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    position: torch.Tensor,
    ring: torch.Tensor,
    ended: EndedBlocks,
    pages: BlockPages,
    eps: float,
    record_format: str,
) -> None:
    """Advance B decoding rows by one token each: fold it, store the record it finishes.

    rows      [B, 2 D] float32, rows may be strided; not changed
    state     [U, banks, 3, D] float32, banks at least 2; mutated
    ape       [128, 2 D] float32   added to the gates by t % 128; its kv columns are zeros
    position  [B] int64   -1 for a row that only pads the batch: nothing of it is read or written
    ring      [B] int32   no two rows share one
    ended     m = B: the block that each row's token finishes
    pages     norm and pages of the records
    record_format  as `jit_kernels.store_kv` takes it

    Float32 from the rows to the records. Raises ShapeError before anything is written.
    Source: layers/NETWORK.md, 4.
    """
    count = rows.shape[0]
    _check(rows, state, ape, ended, pages, record_format)
    check_shape("position", position, count)
    check_dtype("position", position, torch.int64)
    check_shape("ring", ring, count)
    check_dtype("ring", ring, torch.int32)
    check_ended(ended, count)
    _fold_tokens(
        rows,
        state,
        ape=ape,
        position=position,
        ring=ring,
        ended=ended,
        pages=pages,
        eps=eps,
        record_format=record_format,
    )


def fold_chunks(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    tokens: ChunkTokens,
    window_from: torch.Tensor,
    last: torch.Tensor,
    ended: EndedBlocks,
    saves: StateSaves,
    pages: BlockPages,
    eps: float,
    record_format: str,
) -> None:
    """Store all records that chunks finish, then write the banks that the step saves.

    rows         [T, 2 D] float32, rows may be strided; not changed
    window_from  [n] int64   a chunk that starts here or before begins anew, whatever its ring holds
    last         [m] int64   token that finishes each of `ended`, those of a row in their order
    saves        banks of rings, a token's entry being the state after it; targets differ. Whatever
                 they overwrite was read before
    Else as `fold_tokens`, to whose bits this leads: where a chunk is cut changes nothing.

    Raises ShapeError before anything is written.
    """
    _check(rows, state, ape, ended, pages, record_format)
    check_tokens(tokens, rows.shape[0])
    check_shape("window_from", window_from, tokens.ring.shape[0])
    check_dtype("window_from", window_from, torch.int64)
    check_shape("last", last, ended.slots.shape[0])
    check_dtype("last", last, torch.int64)
    check_ended(ended, None)
    check_saves(saves)
    _fold_chunks(
        rows,
        state,
        ape=ape,
        tokens=tokens,
        window_from=window_from,
        last=last,
        ended=ended,
        saves=saves,
        pages=pages,
        eps=eps,
        record_format=record_format,
    )


def _check(
    rows: torch.Tensor,
    state: torch.Tensor,
    ape: torch.Tensor,
    ended: EndedBlocks,
    pages: BlockPages,
    record_format: str,
) -> None:
    width, turned = pages.weight.shape[0], ended.rotation.shape[-1]
    check_shape("rows", rows, None, 2 * width)
    check_shape("state", state, None, None, 3, width)
    check_shape("ape", ape, RATIO, 2 * width)
    for name, tensor in (("rows", rows), ("state", state), ("ape", ape)):
        check_dtype(name, tensor, torch.float32)
    if state.shape[1] < 2:
        raise ShapeError(f"rings have {state.shape[1]} banks, expected at least 2")
    if not state.is_contiguous() or not ape.is_contiguous() or rows.stride(1) != 1:
        raise ShapeError("state and ape must be contiguous, and so must each of the rows")
    if turned > width or turned % 2 or width % 2:
        raise ShapeError(f"of {width} channels {turned} turn, expected whole pairs")
    if record_format == "fp8":
        check_pages("pages", pages, *packed_record_bytes(width, turned), width=width)
    else:
        data = width * RECORD_DTYPES[record_format].itemsize
        check_pages("pages", pages, data, 0, width=width)
