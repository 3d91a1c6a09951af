"""What one forward pass is told: the contract between the runtime (fills it) and the network.

Rows are the requests of one step; tokens are the rows' chunks laid end to end. A decode step is
a step whose chunks have one token each: there is no second code path in the reference.

    tokens   [ row 0: chunk_start[0] .. +chunk_len[0] )[ row 1 ... )...        T in all
    pages    page_table[row, position // page_size]
    window   window[row, (position // swa_page_size) % window_pages], positions before the chunk
    ring     ring[row], the compress state before the chunk

The network writes records, indexer keys and C128 records of finished blocks into the row's full
pages. Windows and rings are written only through saves: "put the window and the compress state
as they are before `save_position` into these SWA pages and this ring". Each row has a save at
its chunk's end into its own pages; a resume point made anywhere inside the chunk is one more.
Slots that already hold what a save asks for (same page, position before the chunk) are left.

With draft tokens (mem_cache.spec.TreeSpec) the end of a chunk of at most draft_tokens + 1 tokens
may be guesses. Any prefix of it, at least the first token, may turn out to be accepted: the row's
next chunk starts right after it, and what the rejected tokens wrote is never read and is written
again. What such a chunk saves serves each of these ends; `save_position` is in the chunk.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Tensors of one step, in host memory. n rows, T tokens, m saves, k logits.

    The reference network takes them on a device of its own, too.

    input_ids      [T] int64
    chunk_start    [n] int64    position of the chunk's first token
    chunk_len      [n] int64    tokens in the chunk, at least 1
    page_table     [n, pages] int32   full page of each page of positions, through the chunk's end
    window         [n, window_pages] int32   SWA pages before the chunk; 0 where there is none
    ring           [n] int32    ring with the state before the chunk (unread at position 0)
    window_from    [n] int64    positions before it must not be read from the window (replay start)
    write_from     [n] int64    records whose last token is before it are not written
    save_row       [m] int64    row index of each save
    save_position  [m] int64    in (chunk_start, chunk_start + chunk_len]
    save_ring      [m] int32    destination ring, a row's or a resume point's
    save_window    [m, window_pages] int32   destination SWA pages
    logit_tokens   [k] int64    indices into the T tokens whose logits are wanted
    """

    input_ids: torch.Tensor
    chunk_start: torch.Tensor
    chunk_len: torch.Tensor
    page_table: torch.Tensor
    window: torch.Tensor
    ring: torch.Tensor
    window_from: torch.Tensor
    write_from: torch.Tensor
    save_row: torch.Tensor
    save_position: torch.Tensor
    save_ring: torch.Tensor
    save_window: torch.Tensor
    logit_tokens: torch.Tensor


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What one forward pass returns, on the device of the network; n rows, k logits.

    logits  [k, vocab] float32 of `logit_tokens`
    finite  [n] bool   False where the final residual streams of a token of the row hold a NaN or
            an infinity. An overflow of their last mixing alone is not seen.
    """

    logits: torch.Tensor
    finite: torch.Tensor


def finite_rows(tokens: torch.Tensor, row: torch.Tensor, chunk_len: torch.Tensor) -> torch.Tensor:
    """Return which rows have only finite tokens, [n] bool; the host does not wait.

    tokens     [T] bool   finite or not
    row        [T] int64 of each token
    chunk_len  [n] int64
    """
    counts = torch.zeros_like(chunk_len).index_add_(0, row, tokens.to(chunk_len.dtype))
    return counts == chunk_len


@dataclass(frozen=True, slots=True)
class FedTokens:
    """Tokens of a step that the device has sampled, and the host does not know yet.

    at   [f] int64 on the device, which of the T tokens they are
    ids  [f] int64 on the device
    """

    at: torch.Tensor
    ids: torch.Tensor
