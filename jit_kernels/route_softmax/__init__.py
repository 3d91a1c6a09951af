"""Which experts a token goes to by the softmax of its scores, and with what weight."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select

__all__ = ["route_softmax"]

_MODULE = "jit_kernels.route_softmax"
_route_softmax: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select(
    "route_softmax",
    [
        Backend("triton", f"{_MODULE}.triton_backend:route_softmax", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:route_softmax"),
    ],
)


def route_softmax(
    logits: torch.Tensor, *, top_k: int, normalised: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the `top_k` experts with the largest logits.

    logits      [T, E] float32
    normalised  weights are the softmax over the chosen experts, else over all

    Returns (experts [T, k] int64, best first, ties to the lower id; weights [T, k] float32).
    A token's bits depend on its own logits alone. Raises ShapeError.
    """
    check_shape("logits", logits, None, None)
    check_dtype("logits", logits, torch.float32)
    if not 0 < top_k <= logits.shape[1]:
        raise ShapeError(f"top_k is {top_k}, of {logits.shape[1]} experts")
    return _route_softmax(logits, top_k, normalised)
