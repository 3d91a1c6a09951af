"""Routed experts whose products have biases, with a steeper gate than SwiGLU."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_dense, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["biased_moe"]

_MODULE = "jit_kernels.biased_moe"
_biased_moe: Callable[..., torch.Tensor] = select(
    "biased_moe",
    [
        Backend("triton", f"{_MODULE}.triton_backend:biased_moe", why_no_triton, "cuda"),
        on_host("biased_moe.host:biased_moe"),
        Backend("reference", f"{_MODULE}.reference:biased_moe"),
    ],
)


def biased_moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    biases: tuple[torch.Tensor, torch.Tensor],
    limit: float,
    alpha: float,
    invariant: bool = False,
) -> torch.Tensor:
    """Return `sum_k weights_k * (W2 gated(W13 x + b13) + b2)` over the experts of each row.

    Gated is `(clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g)` of `g = min(gate, limit)`.

    x          [T, d] float32 or bfloat16
    experts    [T, k] int64, different from each other in a row
    weights    [T, k] float32
    gate_up    [E, 2 I, d] dtype of x   W13: gate rows, then up rows
    down       [E, d, I] dtype of x     W2
    biases     (b13 [E, 2 I], b2 [E, d]) float32, contiguous
    invariant  a row's bits depend on its own numbers alone; on the CPU they do in any case

    Returns [T, d] float32. Gated inner activations are rounded to the dtype of x; the sum runs over
    k in order. Nothing waits for a CUDA device. Raises ShapeError.
    """
    width, inner = x.shape[1], down.shape[2]
    check_shape("gate_up", gate_up, down.shape[0], 2 * inner, width)
    check_shape("weights", weights, x.shape[0], experts.shape[1])
    for name, bias, channels in zip(("b13", "b2"), biases, (2 * inner, width), strict=True):
        check_shape(name, bias, down.shape[0], channels)
        check_dense(name, bias, torch.float32)
    given = {"gate_up": gate_up, "down": down, "biases": biases}
    return _biased_moe(x, experts, weights, **given, limit=limit, alpha=alpha, invariant=invariant)
