"""Scores of compressed blocks for the tokens of chunks, from keys gathered side by side."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.paged_logits import check_key_pages, check_queries
from jit_kernels.paged_rows import PageLayout
from jit_kernels.registry import Backend, select
from jit_kernels.vendor_library import why_no_deep_gemm

__all__ = ["chunk_logits", "gather_key_pages"]

_MODULE = "jit_kernels.chunk_logits"
_chunk_logits: Callable[..., torch.Tensor] = select(
    "chunk_logits",
    [
        Backend("deep_gemm", f"{_MODULE}.deep_gemm_backend:chunk_logits", why_no_deep_gemm, "cuda"),
        Backend("reference", f"{_MODULE}.reference:chunk_logits"),
    ],
)
_gather_key_pages: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select(
    "gather_key_pages",
    [
        Backend("triton", f"{_MODULE}.triton_backend:gather_key_pages", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:gather_key_pages"),
    ],
)


def gather_key_pages(
    pages: torch.Tensor, named: torch.Tensor, layout: PageLayout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy whole pages of fp8 indexer keys one after another.

    pages  [U, layout.page_bytes] uint8, contiguous   64 keys each
    named  [N] int32   pages in [0, U), those of each row in order

    Returns (codes [64 N, C] float8_e4m3fn, scales [64 N] float32). Raises ShapeError.
    """
    check_key_pages(pages, layout, layout.data_bytes)
    check_shape("named", named, None)
    check_dtype("named", named, torch.int32)
    return _gather_key_pages(pages, named, layout)


def chunk_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    keys: tuple[torch.Tensor, torch.Tensor],
    *,
    start: torch.Tensor,
    end: torch.Tensor,
    columns: int,
) -> torch.Tensor:
    """Return `sum_h weights_h * relu(q_h . key)` of each token with its keys, [T, columns] float32.

    q, weights  [T, P, C] float8_e4m3fn and [T, P] float32, as `indexer_queries` gives them
    keys        as `gather_key_pages` gives them
    start, end  [T] int32   a token sees keys [start, end): column j is key start + j
    columns     most keys of a token

    Columns from `end - start` on hold anything. Cheap where tokens beside each other see much the
    same keys. A token's bits depend on nothing but its own numbers. Raises ShapeError.
    Memory: see `jit_kernels.paged_logits.row_slices`.
    """
    tokens, width = q.shape[0], q.shape[2]
    check_queries(q, weights)
    codes, scales = keys
    check_shape("codes", codes, None, width)
    check_dtype("codes", codes, torch.float8_e4m3fn)
    check_shape("scales", scales, codes.shape[0])
    check_dtype("scales", scales, torch.float32)
    for name, bound in (("start", start), ("end", end)):
        check_shape(name, bound, tokens)
        check_dtype(name, bound, torch.int32)
    if not codes.is_contiguous() or not scales.is_contiguous():
        raise ShapeError("keys are not contiguous")
    if not tokens or not columns:
        return torch.empty((tokens, columns), dtype=torch.float32, device=q.device)
    return _chunk_logits(q, weights, codes, scales, start, end, columns)
