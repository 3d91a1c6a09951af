"""Compression and indexing at the shapes of V4: decode steps, and chunks of one row."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from jit_kernels.chunk_logits import chunk_logits, gather_key_pages
from jit_kernels.compress_fold import fold_chunks, fold_tokens
from jit_kernels.compress_pool import (
    BlockPages,
    ChunkTokens,
    EndedBlocks,
    StateSaves,
    pool_chunks,
    pool_tokens,
)
from jit_kernels.indexer_queries import indexer_queries
from jit_kernels.out_rope_quant import out_rope_quant
from jit_kernels.paged_logits import LogitsPlan, paged_logits
from jit_kernels.paged_rows import PageLayout
from tests.bench.kernels.case import FEW, LIMITS, MANY, Case, Limit

__all__ = ["cases"]

DECODES = (1, 16, 64, 128)
CHUNKS = (FEW, 8_192, MANY)
# Rows, blocks of each.
PAGED = [(1, 2_048), (64, 2_048), (64, 16_384), (1, 250_000), (16, 250_000)]
# Tokens, blocks that the first of them sees.
SCORED = [(8_192, 0), (4_096, 16_384), (512, 250_000)]

MAIN, INDEX, TURNED = 512, 128, 64
POOLED, FOLDED = 4 * (MAIN + INDEX), 2 * MAIN
RECORDS = PageLayout(page_rows=64, data_bytes=576, scale_bytes=8, page_bytes=37440)
KEYS = PageLayout(page_rows=64, data_bytes=128, scale_bytes=4, page_bytes=8448)
RECORD_BYTES, KEY_BYTES = 584, 132

Prepare = Callable[[], Callable[[], Any]]


def cases(*, shrink: int = 1) -> Iterator[Case]:
    """Yield every case; `shrink` divides numbers of rows, tokens and blocks, for a quick try."""
    for rows in DECODES:
        few = -(-rows // shrink)
        yield from _decodes(rows, few)
    for tokens in CHUNKS:
        yield from _chunks(tokens, -(-tokens // shrink), LIMITS.get(tokens, Limit()))
    for rows, blocks in PAGED:
        yield _paged(-(-rows // shrink), -(-blocks // shrink))
    for tokens, seen in SCORED:
        yield _scored(-(-tokens // shrink), seen // shrink)


def _decodes(name: int, rows: int) -> Iterator[Case]:
    """Yield the steps of rows of which as many finish a block as on average."""
    ended, whole = -(-rows // 4), -(-rows // 128)
    state = 8 * rows * POOLED + 4 * rows * POOLED // 2
    pooled = state + ended * (28 * 2 * (MAIN + INDEX) + RECORD_BYTES + KEY_BYTES)
    yield Case("pool_tokens", f"B={name}", pooled, _pool_step(rows), Limit())
    folded = rows * (4 * FOLDED + 6 * MAIN * 4 + 2 * FOLDED) + whole * RECORD_BYTES
    yield Case("fold_tokens", f"B={name}", folded, _fold_step(rows), Limit())


def _chunks(name: int, tokens: int, limit: Limit) -> Iterator[Case]:
    pooled = tokens * 4 * POOLED + tokens // 4 * (RECORD_BYTES + KEY_BYTES + 512)
    yield Case("pool_chunks", f"T={name}", pooled, _pool_chunk(tokens), limit)
    folded = tokens * 4 * FOLDED + tokens // 128 * (RECORD_BYTES + 512)
    yield Case("fold_chunks", f"T={name}", folded, _fold_chunk(tokens), limit)
    turns = tokens * 2 * TURNED * 4

    def queries() -> Callable[[], Any]:
        q = torch.randn(tokens, 64, INDEX, dtype=torch.bfloat16)
        weights, rotation = torch.randn(tokens, 64), torch.randn(tokens, 2, TURNED)
        return lambda: indexer_queries(q, weights, rotation)

    def back() -> Callable[[], Any]:
        out = torch.randn(tokens, 64, MAIN, dtype=torch.bfloat16)
        rotation = torch.randn(tokens, 2, TURNED)
        return lambda: out_rope_quant(out, rotation, groups=8)

    moved = tokens * 64 * (3 * INDEX + 8) + turns
    yield Case("indexer_queries", f"T={name} H=64", moved, queries, limit)
    moved = tokens * 64 * (3 * MAIN + 4 * MAIN // 128) + turns
    yield Case("out_rope_quant", f"T={name} H=64 C=512", moved, back, limit)


def _pages(layout: PageLayout, blocks: int, width: int) -> BlockPages:
    units = 1 + -(-blocks // layout.page_rows)
    pages = torch.zeros((units, layout.page_bytes), dtype=torch.uint8)
    return BlockPages(pages, layout, torch.randn(width))


def _ape(ratio: int, *kv: int) -> torch.Tensor:
    """Return ape with zeros in the columns of kv, which are as many as those of each gate."""
    parts = [(torch.zeros(ratio, width), torch.randn(ratio, width)) for width in kv]
    return torch.cat([part for both in parts for part in both], 1)


def _pool_options(blocks: int) -> dict[str, Any]:
    return {
        "ape": _ape(4, 2 * MAIN, 2 * INDEX),
        "main": _pages(RECORDS, blocks, MAIN),
        "index": _pages(KEYS, blocks, INDEX),
        "eps": 1e-6,
        "record_format": "fp8",
    }


def _fold_options(blocks: int) -> dict[str, Any]:
    pages = _pages(RECORDS, blocks, MAIN)
    return {"ape": _ape(128, MAIN), "pages": pages, "eps": 1e-6, "record_format": "fp8"}


def _row_options(rows: int, ratio: int) -> dict[str, Any]:
    """Return where rows stand whose positions differ by one."""
    position = torch.arange(rows) + 4_096 + (ratio - 1)
    ends = position % ratio == ratio - 1
    slots = torch.where(ends, torch.arange(rows) + 64, 0)
    ended = EndedBlocks(slots, torch.randn(rows, 2, TURNED))
    ring = torch.arange(1, rows + 1, dtype=torch.int32)
    return {"position": position, "ring": ring, "ended": ended}


def _pool_step(rows: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        x, state = torch.randn(rows, POOLED), torch.randn(rows + 1, 8, POOLED)
        more: dict[str, Any] = _pool_options(rows) | _row_options(rows, 4)
        return lambda: pool_tokens(x, state, **more)

    return prepare


def _fold_step(rows: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        x, state = torch.randn(rows, FOLDED), torch.rand(rows + 1, 2, 3, MAIN) + 1
        more: dict[str, Any] = _fold_options(rows) | _row_options(rows, 128)
        return lambda: fold_tokens(x, state, **more)

    return prepare


def _chunk_options(tokens: int, ratio: int, span: int) -> dict[str, Any]:
    """Return a chunk of one row from position 0 on, saved at its end."""
    position = torch.arange(tokens)
    last = (position % ratio == ratio - 1).nonzero()[:, 0]
    ended = EndedBlocks(torch.arange(len(last)) + 64, torch.randn(len(last), 2, TURNED))
    kept = position[-span:]
    row, ring = torch.zeros(tokens, dtype=torch.int64), torch.ones(1, dtype=torch.int32)
    tokens_of = ChunkTokens(position, row, torch.zeros(1, dtype=torch.int64), ring)
    saves = StateSaves(kept + span, kept % span + span)
    return {"tokens": tokens_of, "last": last, "ended": ended, "saves": saves}


def _pool_chunk(tokens: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        x, state = torch.randn(tokens, POOLED), torch.randn(2, 8, POOLED)
        more: dict[str, Any] = _pool_options(tokens // 4) | _chunk_options(tokens, 4, 8)
        return lambda: pool_chunks(x, state, **more)

    return prepare


def _fold_chunk(tokens: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        x, state = torch.randn(tokens, FOLDED), torch.rand(2, 2, 3, MAIN) + 1
        more: dict[str, Any] = _fold_options(tokens // 128) | _chunk_options(tokens, 128, 2)
        begin = torch.zeros(1, dtype=torch.int64)
        return lambda: fold_chunks(x, state, window_from=begin, **more)

    return prepare


def _queries(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    q = (torch.randn(tokens, 64, INDEX) * 60).to(torch.float8_e4m3fn)
    return q, torch.randn(tokens, 64)


def _key_pages(count: int) -> torch.Tensor:
    """Return pages of keys whose scales are numbers, too."""
    pages = torch.randint(120, (count, KEYS.page_bytes), dtype=torch.uint8)
    pages[:, 64 * INDEX :].view(torch.float32)[:] = torch.rand(count, 64)
    return pages


def _paged(rows: int, blocks: int) -> Case:
    def prepare() -> Callable[[], Any]:
        (q, weights), held = _queries(rows), -(-blocks // 64)
        pages = _key_pages(rows * held)
        table = torch.randperm(rows * held, dtype=torch.int32).view(rows, held)
        counts, plan = torch.full((rows,), blocks, dtype=torch.int32), LogitsPlan()
        return lambda: paged_logits(
            *(q, weights, pages, KEYS), page_table=table, blocks=counts, columns=blocks, plan=plan
        )

    moved = rows * (blocks * (KEY_BYTES + 4) + 64 * (INDEX + 4))
    return Case("paged_logits", f"B={rows} blocks={blocks}", moved, prepare, Limit())


def _scored(tokens: int, seen: int) -> Case:
    most = seen + tokens // 4

    def prepare() -> Callable[[], Any]:
        q, weights = _queries(tokens)
        named = torch.arange(-(-most // 64) + 1, dtype=torch.int32)
        keys = gather_key_pages(_key_pages(len(named)), named, KEYS)
        start = torch.zeros(tokens, dtype=torch.int32)
        end = (seen + torch.arange(1, tokens + 1) // 4).to(torch.int32)
        return lambda: chunk_logits(q, weights, keys, start=start, end=end, columns=most)

    moved = tokens * 64 * (INDEX + 4) + 4 * tokens * (seen + tokens // 8) + most * KEY_BYTES
    return Case("chunk_logits", f"T={tokens} from={seen}", moved, prepare, Limit())
