"""Compressing KV: softmax-weighted means of blocks of tokens, channel by channel."""

from collections.abc import Callable, Sequence

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["fold_blocks", "pool_members"]

_MODULE = "jit_kernels.compress_kv.reference"
_pool_members: Callable[..., torch.Tensor] = select(
    "pool_members",
    [on_host("compress_kv.host:pool_members"), Backend("reference", f"{_MODULE}:pool_members")],
)
_fold_blocks: Callable[..., torch.Tensor] = select(
    "fold_blocks",
    [on_host("compress_kv.host:fold_blocks"), Backend("reference", f"{_MODULE}:fold_blocks")],
)


def pool_members(
    rows: torch.Tensor, members: torch.Tensor, *, kv: int, gate: int, width: int
) -> torch.Tensor:
    """Return the blocks' means `sum_s softmax_s(gate) * kv`, one softmax per block and channel.

    The first half of a block's slots take series a of their rows, the others series b.

    rows     [R, W] float32
    members  [M, S] int64   row of each slot in position order, -1 for none; the last slot has one
    kv       first column of the values' series a; series b is `width` further on
    gate     first column of the gates' series a, likewise

    Returns [M, width] float32, summed in an order that depends on S alone. Raises ShapeError.
    """
    check_dtype("rows", rows, torch.float32)
    check_dtype("members", members, torch.int64)
    if not 0 <= min(kv, gate) <= max(kv, gate) + 2 * width <= rows.shape[1]:
        raise ShapeError(
            f"rows has {rows.shape[1]} columns, too few for two series at {kv}, {gate}"
        )
    return _pool_members(rows, members, kv, gate, width)


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
