"""Blocks of 4 tokens, from projected rows to bytes in pages: main branch and indexer at once.

A row is what one token leaves for the blocks to come: main kv, main gate (2 D columns each),
indexer kv, indexer gate (2 C each), every one of them series a, then series b. A block's mean is
that of `jit_kernels.compress_kv.pool_members` over 8 rows, the last of which is that of the token
that finishes it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.kv_records import RECORD_DTYPES, packed_record_bytes
from jit_kernels.paged_rows import PageLayout
from jit_kernels.registry import Backend, select

__all__ = [
    "SLOTS",
    "BlockPages",
    "ChunkTokens",
    "EndedBlocks",
    "StateSaves",
    "check_ended",
    "check_pages",
    "check_saves",
    "check_tokens",
    "pool_chunks",
    "pool_tokens",
]

SLOTS = 8

_MODULE = "jit_kernels.compress_pool"


def _selected(op: str) -> Callable[..., None]:
    return select(
        op,
        [
            # Both ops must run the same one, or chunks have other bits than their tokens.
            Backend("cuda", f"{_MODULE}.cuda_backend:{op}", why_no_hopper, "cuda"),
            Backend("reference", f"{_MODULE}.reference:{op}"),
        ],
    )


_pool_tokens = _selected("pool_tokens")
_pool_chunks = _selected("pool_chunks")


@dataclass(frozen=True, slots=True)
class EndedBlocks:
    """Blocks that a step finishes, m of them.

    slots     [m] int64   page * page_rows + row in the page; 0 or less: there is none to write
    rotation  [m, 2, R] float32 at each block's first position, as `jit_kernels.rope.rope` takes it
    """

    slots: torch.Tensor
    rotation: torch.Tensor


@dataclass(frozen=True, slots=True)
class BlockPages:
    """Where the blocks of one branch are stored, and how they are normed.

    pages   [U, layout.page_bytes] uint8, contiguous; mutated
    weight  [D] float32
    """

    pages: torch.Tensor
    layout: PageLayout
    weight: torch.Tensor


@dataclass(frozen=True, slots=True)
class ChunkTokens:
    """T tokens: chunks of n rows, laid end to end.

    position  [T] int64   ascending by one inside a chunk
    row       [T] int64
    start     [n] int64   position of each chunk's first token
    ring      [n] int32   ring that holds each row's state before its chunk
    """

    position: torch.Tensor
    row: torch.Tensor
    start: torch.Tensor
    ring: torch.Tensor


@dataclass(frozen=True, slots=True)
class StateSaves:
    """Entries of rings to write, s of them; a ring has `span` entries.

    source  [s] int64   into [n * span entries of the rows' rings before the chunks; T entries that
                        the tokens leave]; -1: nothing is written
    target  [s] int64   ring * span + entry
    """

    source: torch.Tensor
    target: torch.Tensor


def pool_tokens(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    position: torch.Tensor,
    ring: torch.Tensor,
    ended: EndedBlocks,
    main: BlockPages,
    index: BlockPages,
    eps: float,
    record_format: str,
) -> None:
    """Advance B decoding rows by one token each: keep its state row, store the block it finishes.

    rows      [B, 4 D + 4 C] float32, rows may be strided; not changed
    state     [U, S, 4 D + 4 C] float32, S at least 8; mutated: token t takes entry t % S of a ring
    ape       [4, 4 D + 4 C] float32   added to the gates by t % 4; its kv columns are zeros
    position  [B] int64   -1 for a row that only pads the batch: nothing of it is read or written
    ring      [B] int32   no two rows share one
    ended     m = B: the block that each row's token finishes
    main      norm and pages of the records, D channels
    index     norm and pages of the indexer keys, C channels; both branches have the same slots
    record_format  as `jit_kernels.store_kv` takes it; with "fp8" keys pass a Hadamard transform

    Float32 from the rows to the records. Rows that finish nothing read nothing of their rings.
    Raises ShapeError before anything is written. Source: layers/NETWORK.md, 4.
    """
    count = rows.shape[0]
    _check(rows, state, ape, main, index)
    check_shape("position", position, count)
    check_dtype("position", position, torch.int64)
    check_shape("ring", ring, count)
    check_dtype("ring", ring, torch.int32)
    check_ended(ended, count)
    _check_formats(ended, main, index, record_format)
    _pool_tokens(
        rows,
        state,
        ape=ape,
        position=position,
        ring=ring,
        ended=ended,
        main=main,
        index=index,
        eps=eps,
        record_format=record_format,
    )


def pool_chunks(
    rows: torch.Tensor,
    state: torch.Tensor,
    *,
    ape: torch.Tensor,
    tokens: ChunkTokens,
    last: torch.Tensor,
    ended: EndedBlocks,
    saves: StateSaves,
    main: BlockPages,
    index: BlockPages,
    eps: float,
    record_format: str,
) -> None:
    """Store all blocks that chunks finish, then write the state rows that the step saves.

    rows    [T, 4 D + 4 C] float32, rows may be strided; not changed
    last    [m] int64   token that finishes each of `ended`
    saves   entries of rings of S rows; targets differ. Whatever they overwrite was read before
    Else as `pool_tokens`, to whose bits this leads: where a chunk is cut changes nothing.

    Raises ShapeError before anything is written.
    """
    _check(rows, state, ape, main, index)
    check_tokens(tokens, rows.shape[0])
    check_shape("last", last, ended.slots.shape[0])
    check_dtype("last", last, torch.int64)
    check_ended(ended, None)
    check_saves(saves)
    _check_formats(ended, main, index, record_format)
    _pool_chunks(
        rows,
        state,
        ape=ape,
        tokens=tokens,
        last=last,
        ended=ended,
        saves=saves,
        main=main,
        index=index,
        eps=eps,
        record_format=record_format,
    )


def check_ended(ended: EndedBlocks, count: int | None) -> None:
    """Raise ShapeError unless these are well-formed blocks, `count` of them."""
    check_shape("ended.slots", ended.slots, count)
    check_dtype("ended.slots", ended.slots, torch.int64)
    check_shape("ended.rotation", ended.rotation, ended.slots.shape[0], 2, None)
    check_dtype("ended.rotation", ended.rotation, torch.float32)


def check_pages(
    name: str, where: BlockPages, data: int, scale: int, *, width: int | None = None
) -> None:
    """Raise ShapeError unless rows of `data + scale` bytes fit, and `width` channels if given."""
    check_shape(f"{name}.pages", where.pages, None, where.layout.page_bytes)
    check_dtype(f"{name}.pages", where.pages, torch.uint8)
    check_shape(f"{name}.weight", where.weight, width)
    check_dtype(f"{name}.weight", where.weight, torch.float32)
    if not where.pages.is_contiguous():
        raise ShapeError(f"{name}.pages is not contiguous")
    if (where.layout.data_bytes, where.layout.scale_bytes) != (data, scale):
        raise ShapeError(f"{name}: rows of {data} + {scale} bytes do not fit {where.layout}")


def check_tokens(tokens: ChunkTokens, count: int) -> None:
    """Raise ShapeError unless these are well-formed chunks of `count` tokens."""
    for name, tensor, size, dtype in (
        ("position", tokens.position, count, torch.int64),
        ("row", tokens.row, count, torch.int64),
        ("start", tokens.start, tokens.ring.shape[0], torch.int64),
        ("ring", tokens.ring, tokens.ring.shape[0], torch.int32),
    ):
        check_shape(f"tokens.{name}", tensor, size)
        check_dtype(f"tokens.{name}", tensor, dtype)


def check_saves(saves: StateSaves) -> None:
    """Raise ShapeError unless sources and targets pair up."""
    check_shape("saves.target", saves.target, saves.source.shape[0])
    check_dtype("saves.source", saves.source, torch.int64)
    check_dtype("saves.target", saves.target, torch.int64)


def _check(
    rows: torch.Tensor,
    state: torch.Tensor,
    ape: torch.Tensor,
    main: BlockPages,
    index: BlockPages,
) -> None:
    columns = 4 * (main.weight.shape[0] + index.weight.shape[0])
    check_shape("rows", rows, None, columns)
    check_shape("state", state, None, None, columns)
    check_shape("ape", ape, 4, columns)
    for name, tensor in (("rows", rows), ("state", state), ("ape", ape)):
        check_dtype(name, tensor, torch.float32)
    if state.shape[1] < SLOTS:
        raise ShapeError(f"rings have {state.shape[1]} rows, expected at least {SLOTS}")
    if not state.is_contiguous() or not ape.is_contiguous() or rows.stride(1) != 1:
        raise ShapeError("state and ape must be contiguous, and so must each of the rows")


def _check_formats(
    ended: EndedBlocks, main: BlockPages, index: BlockPages, record_format: str
) -> None:
    width, key = main.weight.shape[0], index.weight.shape[0]
    turned = ended.rotation.shape[2]
    if turned > min(width, key) or turned % 2 or width % 2 or key % 2:
        raise ShapeError(f"of {width} and {key} channels {turned} turn, expected whole pairs")
    if record_format != "fp8":
        size = RECORD_DTYPES[record_format].itemsize
        check_pages("main", main, width * size, 0, width=width)
        check_pages("index", index, key * size, 0, width=key)
        return
    if key & (key - 1):
        raise ShapeError(f"keys have {key} channels, expected a power of two")
    check_pages("main", main, *packed_record_bytes(width, turned), width=width)
    check_pages("index", index, key, 4, width=key)
