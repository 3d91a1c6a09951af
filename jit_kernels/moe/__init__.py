"""Routed experts: each row through its experts, summed in the order they were chosen."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_shape
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["moe"]

_moe: Callable[..., torch.Tensor] = select(
    "moe", [on_host("moe.host:moe"), Backend("reference", "jit_kernels.moe.reference:moe")]
)


def moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    limit: float,
) -> torch.Tensor:
    """Return `sum_k weights_k * W2 silu_mul(W13 x)` over the experts chosen for each row.

    x        [T, d] float32 or bfloat16
    experts  [T, k] int64, different from each other in a row
    weights  [T, k] float32
    gate_up  [E, 2 I, d] dtype of x   W1 rows, then W3 rows
    down     [E, d, I] dtype of x
    limit    clamp of the SwiGLU, see `silu_mul`

    Returns [T, d] float32. The sum runs over k in order. Raises ShapeError.
    """
    width, inner = x.shape[1], down.shape[2]
    check_shape("gate_up", gate_up, down.shape[0], 2 * inner, width)
    check_shape("weights", weights, x.shape[0], experts.shape[1])
    return _moe(x, experts, weights, gate_up=gate_up, down=down, limit=limit)
