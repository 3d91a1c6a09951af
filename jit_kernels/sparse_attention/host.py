"""Attention in C."""

import torch

from jit_kernels.host import by_rows, function, raise_fault, rows_of

_sparse_attention = function("sparse_attention", "ppppfpiiiii")


def sparse_attention(
    q: torch.Tensor, keys: torch.Tensor, index: torch.Tensor, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend; see `jit_kernels.sparse_attention.sparse_attention`."""
    tokens, heads, width = q.shape
    queries, index, keys = rows_of(q).contiguous(), index.contiguous(), keys.contiguous()
    out = torch.empty(q.shape, dtype=torch.float32)
    q_at, index_at, out_at = queries.data_ptr(), index.data_ptr(), out.data_ptr()
    keys_at, sink_at, rows, slots = keys.data_ptr(), sink.data_ptr(), len(keys), index.shape[1]

    def attend(first: int, last: int) -> None:
        shift = 4 * first * heads * width
        code = _sparse_attention(
            *(q_at + shift, keys_at, index_at + 8 * first * slots, sink_at, scale),
            *(out_at + shift, last - first, heads, width, rows, slots),
        )
        raise_fault(code)

    by_rows(attend, tokens)
    return out if q.dtype is torch.float32 else out.to(q.dtype)
