"""Attention of heads that share keys in groups, over keys and values in pages."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["ChunkRows", "grouped_attention"]

MOST_SHARE = 128

_grouped_attention: Callable[..., torch.Tensor] = select(
    "grouped_attention",
    [
        on_host("grouped_attention.host:grouped_attention"),
        Backend("reference", "jit_kernels.grouped_attention.reference:grouped_attention"),
    ],
)


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Rows of consecutive tokens, laid end to end, and where their keys lie. n rows, T tokens.

    page_table  [n, m] int32, contiguous   page of each page of positions
    start       [n] int64   position of a row's first token
    count       [n] int64   tokens of a row
    row         [T] int64, contiguous   of each token
    position    [T] int64, contiguous   of each token
    since       [T] int64, contiguous   the first position that each token reads, 0 to its own;
                None: all read from 0 on
    """

    page_table: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor
    row: torch.Tensor
    position: torch.Tensor
    since: torch.Tensor | None = None


def grouped_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: ChunkRows,
    *,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `softmax(scale * q . keys) @ values` over the positions up to each token's own.

    q       [T, H, D] float32   a token's heads lie one after another, tokens may lie apart
    keys    [U, P, KH, D] float32 or bfloat16, contiguous; a page holds P positions. Head h reads
            the keys of head h * KH // H, which at most 128 heads share. Positions that no token
            of a row reads may hold anything
    values  like `keys`
    sinks   [H] float32, contiguous; one more logit in the denominator, without a value; None: none

    Returns [T, H, D] float32. A token's bits depend on its own q and on the keys and values of the
    positions that it reads. Raises ShapeError.
    """
    tokens, heads, width = q.shape
    check_dtype("q", q, torch.float32)
    check_shape("keys", keys, None, None, None, width)
    check_dense("keys", keys, torch.float32, torch.bfloat16)
    check_shape("values", values, *keys.shape)
    check_dense("values", values, keys.dtype)
    check_shape("page_table", rows.page_table, rows.start.shape[0], None)
    check_dense("page_table", rows.page_table, torch.int32)
    for name, index in (("row", rows.row), ("position", rows.position), ("since", rows.since)):
        if index is not None:
            check_shape(name, index, tokens)
            check_dense(name, index, torch.int64)
    if sinks is not None:
        check_shape("sinks", sinks, heads)
        check_dense("sinks", sinks, torch.float32)
    if heads % keys.shape[2] or heads // keys.shape[2] > MOST_SHARE:
        raise ShapeError(f"{heads} heads of queries cannot share {keys.shape[2]} of keys")
    if q.stride(2) != 1 or q.stride(1) != width:
        raise ShapeError(f"q has heads of {width} channels with strides {q.stride()}")
    return _grouped_attention(q, keys, values, rows, scale, sinks)
