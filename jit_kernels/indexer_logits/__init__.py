"""Scores of compressed blocks: how much each query wants each block."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.host import on_host
from jit_kernels.indexer_logits.reference import KEY_TILE
from jit_kernels.registry import Backend, select

__all__ = ["KEY_TILE", "indexer_logits"]

_indexer_logits: Callable[..., torch.Tensor] = select(
    "indexer_logits",
    [
        on_host("indexer_logits.host:indexer_logits"),
        Backend("reference", "jit_kernels.indexer_logits.reference:indexer_logits"),
    ],
)


def indexer_logits(
    q: torch.Tensor,
    weights: torch.Tensor,
    keys: torch.Tensor,
    *,
    row: torch.Tensor,
    visible: torch.Tensor,
) -> torch.Tensor:
    """Return `sum_h weights_h * relu(q_h . key)` of each token with the keys of its row.

    q        [T, H, C] float32
    weights  [T, H] float32, may be negative
    keys     [n, B, C] float32   B a multiple of 64; keys that nobody may see can hold anything
    row      [T] int64           the row of each token, ascending
    visible  [T] int64           a token sees keys [0, visible) of its row

    Returns [T, B] float32, -inf for keys that are not visible. Raises ShapeError.
    """
    tokens, heads, width = q.shape
    check_shape("weights", weights, tokens, heads)
    check_shape("keys", keys, None, None, width)
    check_dtype("q", q, torch.float32)
    if keys.shape[1] % KEY_TILE:
        raise ShapeError(f"keys has {keys.shape[1]} slots, expected a multiple of {KEY_TILE}")
    return _indexer_logits(q, weights, keys, row=row, visible=visible)
