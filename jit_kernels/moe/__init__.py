"""Routed experts: each row through its experts, summed in the order they were chosen."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["moe"]

_moe: Callable[..., torch.Tensor] = select(
    "moe",
    [
        Backend("triton", "jit_kernels.moe.triton_backend:moe", why_no_triton, "cuda"),
        on_host("moe.host:moe"),
        Backend("reference", "jit_kernels.moe.reference:moe"),
    ],
)


def moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    limit: float,
    invariant: bool = False,
    plus: Callable[[], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return `sum_k weights_k * W2 silu_mul(W13 x) + plus()` over the experts chosen for each row.

    x          [T, d] float32 or bfloat16; bfloat16 on a CUDA device
    experts    [T, k] int64, different from each other in a row
    weights    [T, k] float32
    gate_up    [E, 2 I, d] dtype of x   W1 rows, then W3 rows
    down       [E, d, I] dtype of x
    limit      clamp of the SwiGLU, see `silu_mul`
    invariant  a row's bits depend on its own numbers alone; on the CPU they do in any case
    plus       returns [T, d] float32, called when that is needed; None: nothing is added

    Returns [T, d] float32. Gated inner activations are rounded to the dtype of x; the sum runs over
    k in order. Nothing waits for a CUDA device. Raises ShapeError.
    """
    width, inner = x.shape[1], down.shape[2]
    check_shape("gate_up", gate_up, down.shape[0], 2 * inner, width)
    check_shape("weights", weights, x.shape[0], experts.shape[1])
    return _moe(
        x,
        experts,
        weights,
        gate_up=gate_up,
        down=down,
        limit=limit,
        invariant=invariant,
        plus=plus,
    )
