"""Attention of each token over the keys it names, with a sink."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dense, check_shape
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select
from jit_kernels.sparse_attention.reference import KEY_TILE

__all__ = ["KEY_TILE", "sparse_attention"]

_sparse_attention: Callable[..., torch.Tensor] = select(
    "sparse_attention",
    [
        on_host("sparse_attention.host:sparse_attention"),
        Backend("reference", "jit_kernels.sparse_attention.reference:sparse_attention"),
    ],
)


def sparse_attention(
    q: torch.Tensor, keys: torch.Tensor, index: torch.Tensor, *, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return `softmax(scale * q . keys[index], sink) @ keys[index]`; keys are the values too.

    q      [T, H, D] float32 or bfloat16
    keys   [N, D] float32, contiguous   row 0 is zeros and stands for no key; rows that no token
                            names may hold anything
    index  [T, K] int64     keys of each token, K a multiple of 64; 0 where there is none
    sink   [H] float32, contiguous; one more logit in the denominator, without a value

    Returns [T, H, D] in the dtype of q, float32 inside. A token's bits depend on its own q and on
    which key stands in which slot of its index; tiles of 64 slots that name no key change nothing.
    Raises ShapeError.
    """
    check_shape("keys", keys, None, q.shape[2])
    check_shape("index", index, q.shape[0], None)
    check_shape("sink", sink, q.shape[1])
    check_dense("keys", keys, torch.float32)
    check_dense("sink", sink, torch.float32)
    if index.shape[1] % KEY_TILE:
        raise ShapeError(f"index has {index.shape[1]} slots, expected a multiple of {KEY_TILE}")
    return _sparse_attention(q, keys, index, sink, scale)
