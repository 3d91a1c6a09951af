"""Attention of heads that all read one record a position, which is key and value at once."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape
from jit_kernels.grouped_attention import MOST_SHARE, ChunkRows
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["latent_attention"]

_latent_attention: Callable[..., torch.Tensor] = select(
    "latent_attention",
    [
        on_host("latent_attention.host:latent_attention"),
        Backend("reference", "jit_kernels.latent_attention.reference:latent_attention"),
    ],
)


def latent_attention(
    q: torch.Tensor, records: torch.Tensor, rows: ChunkRows, *, values: int, scale: float
) -> torch.Tensor:
    """Return `softmax(scale * q . record) @ record[:values]` over positions up to each token's own.

    q        [T, H, D] float32   a token's heads lie one after another, tokens may lie apart; at
                                 most 128 heads
    records  [U, P, D] float32 or bfloat16, contiguous; a page holds P positions. Positions behind a
             row's last token may hold anything
    values   channels that are read as the value, the first ones

    Returns [T, H, values] float32. A token's bits depend on its own q and on the records of the
    positions that it reads. Raises ShapeError.
    """
    tokens, heads, width = q.shape
    check_dtype("q", q, torch.float32)
    check_shape("records", records, None, None, width)
    check_dense("records", records, torch.float32, torch.bfloat16)
    check_shape("page_table", rows.page_table, rows.start.shape[0], None)
    check_dense("page_table", rows.page_table, torch.int32)
    for name, index in (("row", rows.row), ("position", rows.position)):
        check_shape(name, index, tokens)
        check_dense(name, index, torch.int64)
    if heads > MOST_SHARE or not 0 < values <= width:
        raise ShapeError(f"{heads} heads cannot read {values} of {width} channels")
    if q.stride(2) != 1 or q.stride(1) != width:
        raise ShapeError(f"q has heads of {width} channels with strides {q.stride()}")
    return _latent_attention(q, records, rows, values, scale)
