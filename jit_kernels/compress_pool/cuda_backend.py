"""Blocks of 4 tokens in CUDA C++: fp8 records of 512 channels and keys of 128, of which 64 turn.

The reference takes others. Blocks end, as they do, with a token whose position is one before a
multiple of 4. Chunks take two launches, the second of which begins while the first still runs: it
writes rings, which the first one reads.
"""

from struct import Struct
from typing import TYPE_CHECKING

import torch

from jit_kernels.compress_pool import reference
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
from jit_kernels.cuda_rows import is_aligned, processors

if TYPE_CHECKING:
    from jit_kernels.compress_pool import BlockPages, ChunkTokens, EndedBlocks, StateSaves

_MAIN, _INDEX = 512, 128
# Blocks of threads of a processor, as many as its shared memory holds.
_RESIDENT = 2
_TOKENS_CALL = Struct(f"@{ROWS}{STATE}PP{ENDED}{PAGES}{PAGES}f4x")
_CHUNKS_CALL = Struct(f"@{ROWS}{STATE}{CHUNKS}{ENDED}{SAVES}{PAGES}{PAGES}fi")


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
    if not _takes(state, ape, ended, main, index, record_format):
        reference.pool_tokens(
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
        return
    if not rows.shape[0]:
        return
    rows, position, ring = aligned(rows), position.contiguous(), ring.contiguous()
    slots, rotation = ended_fields(ended)
    fields = (
        *(rows.data_ptr(), ape.data_ptr(), rows.stride(0), state.data_ptr(), state.shape[1]),
        *(position.data_ptr(), ring.data_ptr(), slots.data_ptr(), rotation.data_ptr()),
        *page_fields(main),
        *page_fields(index),
        eps,
    )
    launch("pool_tokens", rows.device, _TOKENS_CALL, fields, rows.shape[0])


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
    if not _takes(state, ape, ended, main, index, record_format):
        reference.pool_chunks(
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
        return
    blocks, entries, span = last.shape[0], saves.source.shape[0], state.shape[1]
    if not blocks + entries:
        return
    rows, last = aligned(rows), last.contiguous()
    position, row = tokens.position.contiguous(), tokens.row.contiguous()
    start, ring = tokens.start.contiguous(), tokens.ring.contiguous()
    source, target = saves.source.contiguous(), saves.target.contiguous()
    slots, rotation = ended_fields(ended)
    fetched = torch.empty((entries, state.shape[2]), dtype=state.dtype, device=state.device)
    fields = (
        *(rows.data_ptr(), ape.data_ptr(), rows.stride(0), state.data_ptr(), span),
        *(position.data_ptr(), row.data_ptr(), start.data_ptr(), ring.data_ptr()),
        *(last.data_ptr(), slots.data_ptr(), rotation.data_ptr()),
        *(source.data_ptr(), target.data_ptr(), fetched.data_ptr(), ring.shape[0] * span, entries),
        *page_fields(main),
        *page_fields(index),
        *(eps, blocks),
    )
    resident = _RESIDENT * processors(rows.device)
    launch("pool_chunks", rows.device, _CHUNKS_CALL, fields, resident)


def _takes(
    state: torch.Tensor,
    ape: torch.Tensor,
    ended: "EndedBlocks",
    main: "BlockPages",
    index: "BlockPages",
    record_format: str,
) -> bool:
    """Say whether the kernels make these blocks; it depends on nothing that a step brings."""
    return (
        record_format == "fp8"
        and ended.rotation.shape[2] == TURNED
        and takes_pages(main, _MAIN)
        and takes_pages(index, _INDEX)
        and is_aligned(state)
        and is_aligned(ape)
    )
