"""Attention of grouped heads in C."""

from typing import TYPE_CHECKING

import torch

from jit_kernels.host import by_rows, function, raise_fault

if TYPE_CHECKING:
    from jit_kernels.grouped_attention import ChunkRows

_attention = function("grouped_attention", "pippipppppfpiiiiiiiiii")


def grouped_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: "ChunkRows",
    scale: float,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend; see `jit_kernels.grouped_attention.grouped_attention`."""
    groups, width = keys.shape[2:]
    return attention(q, keys, values, rows, scale, wide=width, apart=groups * width, sinks=sinks)


def attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: "ChunkRows",
    scale: float,
    *,
    wide: int,
    apart: int,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend to values of `wide` channels, whose positions lie `apart` numbers from each other.

    The rest as in `jit_kernels.grouped_attention.grouped_attention`; returns [T, H, wide].
    """
    tokens, heads, width = q.shape
    units, size, groups, _ = keys.shape
    out = torch.empty((tokens, heads, wide), dtype=torch.float32)
    table = rows.page_table
    q_at, out_at, stride = q.data_ptr(), out.data_ptr(), q.stride(0)
    row_at, position_at = rows.row.data_ptr(), rows.position.data_ptr()
    since_at = None if rows.since is None else rows.since.data_ptr()
    sinks_at = None if sinks is None else sinks.data_ptr()
    pools = (keys.data_ptr(), values.data_ptr(), keys.dtype is torch.bfloat16)
    sizes = (heads, groups, width, wide, apart, units, size, *table.shape)

    def attend(first: int, last: int) -> None:
        code = _attention(
            *(q_at + 4 * first * stride, stride, *pools, table.data_ptr()),
            *(row_at + 8 * first, position_at + 8 * first),
            *(None if since_at is None else since_at + 8 * first, sinks_at, scale),
            *(out_at + 4 * first * heads * wide, last - first, *sizes),
        )
        raise_fault(code)

    each = groups * (width + wide) * keys.itemsize
    read = rows.position if rows.since is None else rows.position - rows.since
    by_rows(attend, tokens, nbytes=each * int(read.sum()) if tokens > 1 else 0)
    return out
