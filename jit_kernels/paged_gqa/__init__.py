"""Attention of heads that share keys in groups, over bfloat16 keys and values in pages."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select
from jit_kernels.vendor_library import why_no_fa3

__all__ = ["PagedRows", "check_rows", "paged_gqa"]

_MODULE = "jit_kernels.paged_gqa"
_BACKENDS = [
    Backend("fa3", f"{_MODULE}.fa3_backend:paged_gqa", why_no_fa3, "cuda"),
    Backend("triton", f"{_MODULE}.triton_backend:paged_gqa", why_no_triton, "cuda"),
    Backend("reference", f"{_MODULE}.reference:paged_gqa"),
]
_paged_gqa: Callable[..., torch.Tensor] = select("paged_gqa", _BACKENDS)
_paged_gqa_invariant: Callable[..., torch.Tensor] = select("paged_gqa_invariant", _BACKENDS)


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Rows of consecutive tokens, laid end to end, and where their keys lie. n rows, T tokens.

    page_table  [n, m] int32, contiguous   page of each page of positions
    length      [n] int32, contiguous   positions that a row's last token reads; 0: it reads none
    first       [n + 1] int32, contiguous   where each row's tokens begin; None: a row has one token
    most        tokens of the row that has most
    counts      tokens of each row, on the host; None where they are not known there
    """

    page_table: torch.Tensor
    length: torch.Tensor
    first: torch.Tensor | None
    most: int
    counts: tuple[int, ...] | None = None


def check_rows(rows: PagedRows, tokens: int) -> None:
    """Raise ShapeError unless these can be the rows of so many tokens."""
    count = rows.length.shape[0]
    check_shape("page_table", rows.page_table, count, None)
    check_dense("page_table", rows.page_table, torch.int32)
    check_dense("length", rows.length, torch.int32)
    if rows.first is None:
        check_shape("length", rows.length, tokens)
    else:
        check_shape("first", rows.first, count + 1)
        check_dense("first", rows.first, torch.int32)


def paged_gqa(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: PagedRows,
    *,
    scale: float,
    window: int = 0,
    sink: torch.Tensor | None = None,
    invariant: bool = False,
) -> torch.Tensor:
    """Return `softmax(scale * q . keys) @ values` over the positions up to each token's own.

    q          [T, H, D] bfloat16, contiguous
    keys       [U, P, KH, D] bfloat16, contiguous; P a multiple of 16. Head h reads the keys of head
               h * KH // H. Behind a row's last token there may be any finite numbers
    values     like `keys`
    window     a token reads its own position and the `window - 1` before it; 0: all before it
    sink       [H] bfloat16, a logit that takes its share of the softmax and has no value
    invariant  a token's bits depend on what it reads alone, whatever the other tokens and rows

    Returns [T, H, D] bfloat16; zeros for a row that reads nothing. Nothing waits for the device.
    Raises ShapeError.
    """
    tokens, heads, width = q.shape
    check_dense("q", q, torch.bfloat16)
    check_shape("keys", keys, None, None, None, width)
    check_dense("keys", keys, torch.bfloat16)
    check_shape("values", values, *keys.shape)
    check_dense("values", values, torch.bfloat16)
    if heads % keys.shape[2] or keys.shape[1] % 16:
        raise ShapeError(f"{heads} heads, and keys of {keys.shape[2]} in pages of {keys.shape[1]}")
    check_rows(rows, tokens)
    if sink is not None:
        check_shape("sink", sink, heads)
        check_dtype("sink", sink, torch.bfloat16)
    attend = _paged_gqa_invariant if invariant else _paged_gqa
    return attend(q, keys, values, rows, scale, window, sink, invariant)
