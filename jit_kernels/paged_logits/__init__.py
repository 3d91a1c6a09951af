"""Scores of compressed blocks for decoding rows, keys read where they lie in their pages."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.indexer_queries import HEADS, WIDTHS
from jit_kernels.paged_rows import PageLayout
from jit_kernels.registry import Backend, select
from jit_kernels.vendor_library import why_no_deep_gemm

__all__ = [
    "COLUMN_TILE",
    "PAGE_KEYS",
    "LogitsPlan",
    "check_key_pages",
    "check_queries",
    "paged_logits",
    "row_slices",
]

PAGE_KEYS = 64
# Scores of a row are written by so many.
COLUMN_TILE = 256

_MODULE = "jit_kernels.paged_logits"
_paged_logits: Callable[..., torch.Tensor] = select(
    "paged_logits",
    [
        Backend("deep_gemm", f"{_MODULE}.deep_gemm_backend:paged_logits", why_no_deep_gemm, "cuda"),
        Backend("reference", f"{_MODULE}.reference:paged_logits"),
    ],
)


@dataclass(slots=True)
class LogitsPlan:
    """How the calls of one step divide the keys among the device's processors.

    Calls of one step with the same `blocks` (the layers of one kind) share a plan: the first fills
    it by launches of its own, which are then part of a CUDA graph that is being captured. So a plan
    is made inside the capture, and never outlives its step or graph.
    """

    held: dict[str, Any] = field(default_factory=dict[str, Any])


def paged_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    pages: torch.Tensor,
    layout: PageLayout,
    *,
    page_table: torch.Tensor,
    blocks: torch.Tensor,
    columns: int,
    plan: LogitsPlan | None = None,
) -> torch.Tensor:
    """Return `sum_h weights_h * relu(q_h . key)` of each row with its blocks, [B, columns] float32.

    q, weights  [B, P, C] float8_e4m3fn and [B, P] float32, as `indexer_queries` gives them
    pages       [U, layout.page_bytes] uint8, contiguous   64 fp8 indexer keys each
    page_table  [B, N] int32   full page of each page of positions; past a row's blocks: anything
    blocks      [B] int32   blocks of each row, at most `columns`
    columns     most blocks of a row, at most 64 N; costs 4 bytes a row and nothing else
    plan        shared by calls alike; None: this call is the only one of its kind

    Columns from `blocks` on hold anything. A row's bits depend on nothing but its own numbers;
    products are summed in the precision that tensor cores have for fp8. Raises ShapeError.
    Memory: see `row_slices`. Source: layers/NETWORK.md, 5.
    """
    rows, width = q.shape[0], q.shape[2]
    check_queries(q, weights)
    check_key_pages(pages, layout, width)
    check_shape("page_table", page_table, rows, None)
    check_dtype("page_table", page_table, torch.int32)
    check_shape("blocks", blocks, rows)
    check_dtype("blocks", blocks, torch.int32)
    if rows and page_table.stride(1) != 1:
        raise ShapeError("the pages of a row must lie side by side")
    if columns > PAGE_KEYS * page_table.shape[1]:
        raise ShapeError(f"{page_table.shape[1]} pages do not hold {columns} blocks")
    if not rows or not columns:
        return torch.empty((rows, columns), dtype=torch.float32, device=q.device)
    return _paged_logits(q, weights, pages, layout, page_table, blocks, columns, plan)


def row_slices(rows: int, columns: int, *, workspace_bytes: int) -> Iterator[slice]:
    """Cut rows so that the scores of each cut take at most so many bytes; one row is the least.

    columns  scores of a row
    """
    whole = -(-columns // COLUMN_TILE) * COLUMN_TILE
    step = max(1, workspace_bytes // (4 * max(1, whole)))
    for first in range(0, rows, step):
        yield slice(first, min(rows, first + step))


def check_queries(q: torch.Tensor, weights: torch.Tensor) -> None:
    """Raise ShapeError unless these are what `indexer_queries` gives."""
    check_shape("q", q, None, None, None)
    check_dtype("q", q, torch.float8_e4m3fn)
    check_shape("weights", weights, q.shape[0], q.shape[1])
    check_dtype("weights", weights, torch.float32)
    if q.shape[1] not in HEADS or q.shape[2] not in WIDTHS:
        raise ShapeError(f"q has {q.shape[1]} heads of {q.shape[2]}, expected {HEADS} of {WIDTHS}")
    if not q.is_contiguous() or not weights.is_contiguous():
        raise ShapeError("q and weights must be contiguous")


def check_key_pages(pages: torch.Tensor, layout: PageLayout, width: int) -> None:
    """Raise ShapeError unless pages hold 64 fp8 keys of so many channels each."""
    check_shape("pages", pages, None, layout.page_bytes)
    check_dtype("pages", pages, torch.uint8)
    if not pages.is_contiguous():
        raise ShapeError("pages is not contiguous")
    if layout != PageLayout(PAGE_KEYS, width, 4, PAGE_KEYS * (width + 4)):
        raise ShapeError(f"{layout} does not hold {PAGE_KEYS} keys of {width} channels and no more")
