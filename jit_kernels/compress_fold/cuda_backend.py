"""Blocks of 128 tokens in CUDA C++: fp8 records of 512 channels, of which 64 turn.

The reference takes others. Blocks end, as they do, with a token whose position is one before a
multiple of 128. Chunks take two launches, the second of which begins while the first still runs: it
writes rings, which the first one reads.
"""

from struct import Struct
from typing import TYPE_CHECKING

import torch

from jit_kernels.compress_fold import reference
from jit_kernels.compress_pool.cuda_calls import (
    CHUNKS,
    ENDED,
    PAGES,
    ROWS,
    SAVES,
    STATE,
    TURNED,
    aligned,
    ended_fields,
    launch,
    page_fields,
    takes_pages,
)
from jit_kernels.cuda_rows import is_aligned

if TYPE_CHECKING:
    from jit_kernels.compress_pool import BlockPages, ChunkTokens, EndedBlocks, StateSaves

_MAIN = 512
_TOKENS_CALL = Struct(f"@{ROWS}{STATE}PP{ENDED}{PAGES}f4x")
_CHUNKS_CALL = Struct(f"@{ROWS}{STATE}{CHUNKS}P{ENDED}{SAVES}{PAGES}fiii")


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
    if not _takes(state, ape, ended, pages, record_format):
        reference.fold_tokens(
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
        return
    if not rows.shape[0]:
        return
    rows, position, ring = aligned(rows), position.contiguous(), ring.contiguous()
    slots, rotation = ended_fields(ended)
    fields = (
        *(rows.data_ptr(), ape.data_ptr(), rows.stride(0), state.data_ptr(), state.shape[1]),
        *(position.data_ptr(), ring.data_ptr(), slots.data_ptr(), rotation.data_ptr()),
        *page_fields(pages),
        eps,
    )
    launch("fold_tokens", rows.device, _TOKENS_CALL, fields, rows.shape[0])


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
    if not _takes(state, ape, ended, pages, record_format):
        reference.fold_chunks(
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
        return
    blocks, entries, banks = last.shape[0], saves.source.shape[0], state.shape[1]
    if not blocks + entries:
        return
    rows, last, begin = aligned(rows), last.contiguous(), window_from.contiguous()
    position, row = tokens.position.contiguous(), tokens.row.contiguous()
    start, ring = tokens.start.contiguous(), tokens.ring.contiguous()
    source, target = saves.source.contiguous(), saves.target.contiguous()
    slots, rotation = ended_fields(ended)
    fetched = torch.empty((entries, *state.shape[2:]), dtype=state.dtype, device=state.device)
    fields = (
        *(rows.data_ptr(), ape.data_ptr(), rows.stride(0), state.data_ptr(), banks),
        *(position.data_ptr(), row.data_ptr(), start.data_ptr(), ring.data_ptr()),
        *(last.data_ptr(), begin.data_ptr(), slots.data_ptr(), rotation.data_ptr()),
        *(source.data_ptr(), target.data_ptr(), fetched.data_ptr(), ring.shape[0] * banks, entries),
        *page_fields(pages),
        *(eps, blocks, *tokens.position.shape, *ring.shape),
    )
    launch("fold_chunks", rows.device, _CHUNKS_CALL, fields)


def _takes(
    state: torch.Tensor,
    ape: torch.Tensor,
    ended: "EndedBlocks",
    pages: "BlockPages",
    record_format: str,
) -> bool:
    """Say whether the kernels make these blocks; it depends on nothing that a step brings."""
    return (
        record_format == "fp8"
        and ended.rotation.shape[2] == TURNED
        and takes_pages(pages, _MAIN)
        and is_aligned(state)
        and is_aligned(ape)
    )
