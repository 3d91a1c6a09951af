"""Compressing KV: softmax-weighted means of blocks of tokens, channel by channel."""

from collections.abc import Callable, Sequence

import torch

from jit_kernels.checks import check_dtype, check_shape
from jit_kernels.registry import Backend, select

__all__ = ["fold_blocks", "pool_blocks"]

_MODULE = "jit_kernels.compress_kv.reference"
_pool_blocks: Callable[..., torch.Tensor] = select(
    "pool_blocks", [Backend("reference", f"{_MODULE}:pool_blocks")]
)
_fold_blocks: Callable[..., torch.Tensor] = select(
    "fold_blocks", [Backend("reference", f"{_MODULE}:fold_blocks")]
)


def pool_blocks(kv: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return `sum_s softmax_s(gate) * kv`, one softmax per block and channel.

    kv    [M, S, C] float32   the slots of a block in position order
    gate  [M, S, C] float32   -inf where a slot is absent; its kv must then be finite

    Returns [M, C] float32, summed in an order that depends on S alone. Raises ShapeError.
    """
    check_shape("gate", gate, *kv.shape)
    check_dtype("kv", kv, torch.float32)
    return _pool_blocks(kv, gate)


def fold_blocks(
    kv: torch.Tensor, gate: torch.Tensor, start: torch.Tensor, *, active: Sequence[int]
) -> torch.Tensor:
    """Fold tokens one after another into running softmax sums; return every state passed.

    S segments advance together, the longest first: step j takes the j-th token of the first
    `active[j]` segments.

    kv      [T, C] float32       the tokens of step 0, then those of step 1, ...
    gate    [T, C] float32       likewise
    start   [S, 3, C] float32    maximum, sum, weighted sum before the segment; (-inf, 0, 0) when
                                 the block is empty
    active  segments at work in each step, descending, T in all

    Returns [T, 3, C] float32: the state after each token. The mean of a block is the third part
    over the second. Raises ShapeError.
    """
    check_shape("kv", kv, sum(active), None)
    check_shape("gate", gate, *kv.shape)
    check_shape("start", start, active[0] if active else None, 3, kv.shape[1])
    return _fold_blocks(kv, gate, start, active)
