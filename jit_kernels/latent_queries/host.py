"""Queries through the weights of keys in C."""

import torch

from jit_kernels.host import by_rows, function

_latent_queries = function("latent_queries", "piipiiipiiiii")


def latent_queries(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Multiply head by head; see `jit_kernels.latent_queries.latent_queries`."""
    tokens, heads, depth = q.shape
    columns = keys.shape[2]
    out = torch.empty((tokens, heads, columns), dtype=torch.float32)
    strides = (keys.stride(0), keys.stride(1), keys.dtype is torch.bfloat16)
    q_at, keys_at, out_at = q.data_ptr(), keys.data_ptr(), out.data_ptr()

    def multiply(first: int, last: int) -> None:
        _latent_queries(
            *(q_at + 4 * first * q.stride(1), q.stride(0), q.stride(1)),
            *(keys_at + first * keys.stride(0) * keys.itemsize, *strides),
            *(out_at + 4 * first * columns, heads * columns),
            *(tokens, last - first, depth, columns),
        )

    by_rows(multiply, heads, nbytes=keys.nbytes + 4 * tokens * heads * (depth + columns))
    return out
