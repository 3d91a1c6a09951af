"""Indexer keys in pages with poison wherever none was put, and queries for them."""

import torch
from torch import Tensor

from jit_kernels.indexer_keys.reference import encode_keys
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_rows.reference import store_rows

__all__ = ["key_layout", "some_key_pages", "some_queries"]


def key_layout(width: int) -> PageLayout:
    """Return the layout of pages of 64 keys of so many channels."""
    return PageLayout(64, width, 4, 64 * (width + 4))


def some_key_pages(blocks: list[int], width: int) -> tuple[Tensor, Tensor]:
    """Return (pages, table) of rows with so many blocks; the table ends in rubbish."""
    layout, most = key_layout(width), -(-max(blocks) // 64) + 2
    needed = [-(-count // 64) for count in blocks]
    order = (torch.randperm(sum(needed)) + 1).to(torch.int32)
    pages = torch.full((sum(needed) + 1, layout.page_bytes), 255, dtype=torch.uint8)
    table = torch.full((len(blocks), most), 1 << 30, dtype=torch.int32)
    for row, (count, held) in enumerate(zip(blocks, needed, strict=True)):
        mine = order[sum(needed[:row]) :][:held]
        table[row, :held] = mine
        slots = (mine.to(torch.int64).unsqueeze(1) * 64 + torch.arange(64)).flatten()[:count]
        keys = torch.randn(count, width) * torch.randn(count, 1).exp()
        store_rows(pages, slots, encode_keys(keys, "fp8"), layout)
    return pages, table


def some_queries(tokens: int, heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Return queries as e4m3 and weights of their heads."""
    q = torch.randn(tokens, heads, width) * 40
    return q.to(torch.float8_e4m3fn), torch.randn(tokens, heads)
