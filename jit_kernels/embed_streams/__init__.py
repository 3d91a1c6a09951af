"""Embedded tokens, as the result of a block that makes every stream of the network."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select

__all__ = ["embed_streams"]

_MODULE = "jit_kernels.embed_streams"
_embed_streams: Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]] = (
    select(
        "embed_streams",
        [
            Backend("triton", f"{_MODULE}.triton_backend:embed_streams", why_no_triton, "cuda"),
            Backend("reference", f"{_MODULE}.reference:embed_streams"),
        ],
    )
)


def embed_streams(
    token_ids: torch.Tensor, table: torch.Tensor, *, streams: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embeddings of tokens, and shares by which each stream is one of them.

    token_ids  [T] int64   rows of the table; on a device an id that is none gives NaN
    table      [V, d] bfloat16 or float32, contiguous
    streams    N

    Returns ([T, d] in the dtype of the table, shares [T, N + 1, N] float32 as
    `jit_kernels.hyper_connection` has them). Raises ShapeError.
    """
    check_shape("token_ids", token_ids, None)
    check_dtype("token_ids", token_ids, torch.int64)
    check_shape("table", table, None, None)
    return _embed_streams(token_ids, table, streams)
