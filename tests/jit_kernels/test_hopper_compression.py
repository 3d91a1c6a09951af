"""Kernels of compression and indexing compiled for Hopper in V4's sizes: they fit, none spills."""

import importlib.util
import os
from typing import Any

import pytest
import torch

from jit_kernels.compress_pool import BlockPages, ChunkTokens, EndedBlocks, StateSaves
from jit_kernels.paged_rows import PageLayout
from tests.jit_kernels.test_hopper_code import assert_fits, empty

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter runs"),
]

RECORDS = PageLayout(page_rows=64, data_bytes=576, scale_bytes=8, page_bytes=37440)
KEYS = PageLayout(page_rows=64, data_bytes=128, scale_bytes=4, page_bytes=8448)
TOKENS, ROWS, BLOCKS, SAVES = 8192, 3, 2051, 17


def numbers(*shape: int) -> torch.Tensor:
    """Return float32 without memory."""
    return empty(*shape, dtype=torch.float32)


def places(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Return integers without memory."""
    return empty(*shape, dtype=dtype)


def block_pages(layout: PageLayout, width: int) -> BlockPages:
    """Return pages and a norm."""
    return BlockPages(places(100, layout.page_bytes, dtype=torch.uint8), layout, numbers(width))


def ended(count: int) -> EndedBlocks:
    """Return blocks."""
    return EndedBlocks(places(count), numbers(count, 2, 64))


def chunks() -> tuple[ChunkTokens, StateSaves]:
    """Return the tokens of a step and what it saves."""
    ring = places(ROWS, dtype=torch.int32)
    tokens = ChunkTokens(places(TOKENS), places(TOKENS), places(ROWS), ring)
    return tokens, StateSaves(places(SAVES), places(SAVES))


def test_pooling() -> None:
    from jit_kernels.compress_pool import triton_backend
    from tests.testing.hopper_code import launches

    tokens, saves = chunks()
    more: dict[str, Any] = {
        "ape": numbers(4, 2560),
        "main": block_pages(RECORDS, 512),
        "index": block_pages(KEYS, 128),
        "eps": 1e-6,
        "record_format": "fp8",
    }
    with launches() as found:
        triton_backend.pool_tokens(
            *(numbers(64, 2560), numbers(9, 8, 2560)),
            position=places(64),
            ring=places(64, dtype=torch.int32),
            ended=ended(64),
            **more,
        )
        triton_backend.pool_chunks(
            *(numbers(TOKENS, 2560), numbers(9, 8, 2560)),
            tokens=tokens,
            last=places(BLOCKS),
            ended=ended(BLOCKS),
            saves=saves,
            **more,
        )

    assert_fits([*found])


def test_folding() -> None:
    from jit_kernels.compress_fold import triton_backend
    from tests.testing.hopper_code import launches

    tokens, saves = chunks()
    more: dict[str, Any] = {
        "ape": numbers(128, 1024),
        "pages": block_pages(RECORDS, 512),
        "eps": 1e-6,
        "record_format": "fp8",
    }
    with launches() as found:
        triton_backend.fold_tokens(
            *(numbers(64, 1024), numbers(9, 2, 3, 512)),
            position=places(64),
            ring=places(64, dtype=torch.int32),
            ended=ended(64),
            **more,
        )
        triton_backend.fold_chunks(
            *(numbers(TOKENS, 1024), numbers(9, 2, 3, 512)),
            tokens=tokens,
            window_from=places(ROWS),
            last=places(67),
            ended=ended(67),
            saves=saves,
            **more,
        )

    assert_fits([*found])


@pytest.mark.parametrize("tokens", [1, 64, 8192])
def test_queries_scores_and_results(tokens: int) -> None:
    from jit_kernels.chunk_logits import triton_backend as chunk
    from jit_kernels.indexer_queries import triton_backend as queries
    from jit_kernels.out_rope_quant import triton_backend as out
    from jit_kernels.paged_logits import triton_backend as paged
    from tests.testing.hopper_code import launches

    codes = empty(tokens, 64, 128, dtype=torch.float8_e4m3fn)
    pages, bound = (
        places(100, KEYS.page_bytes, dtype=torch.uint8),
        places(tokens, dtype=torch.int32),
    )
    table = places(tokens, 4000, dtype=torch.int32)
    with launches() as found:
        queries.indexer_queries(empty(tokens, 64, 128), numbers(tokens, 64), numbers(tokens, 2, 64))
        rows = (codes, numbers(tokens, 64))
        paged.paged_logits(*rows, pages, KEYS, table, bound, 250_000, None)
        keys = empty(6400, 128, dtype=torch.float8_e4m3fn), numbers(6400)
        chunk.chunk_logits(*rows, *keys, bound, bound, 16_384)
        chunk.gather_key_pages(pages, places(100, dtype=torch.int32), KEYS)
        out.out_rope_quant(empty(tokens, 64, 512), numbers(tokens, 2, 64))

    assert_fits([*found])
