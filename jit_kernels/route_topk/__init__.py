"""Which experts a token goes to, and with what weight."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["route_hashed", "route_topk"]

_MODULE = "jit_kernels.route_topk.reference"
_CUDA = "jit_kernels.route_topk.cuda_backend"
_route_topk: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select(
    "route_topk",
    [
        Backend("cuda", f"{_CUDA}:route_topk", why_no_hopper, "cuda"),
        on_host("route_topk.host:route_topk"),
        Backend("reference", f"{_MODULE}:route_topk"),
    ],
)
_route_hashed: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select(
    "route_hashed",
    [
        Backend("cuda", f"{_CUDA}:route_hashed", why_no_hopper, "cuda"),
        on_host("route_topk.host:route_hashed"),
        Backend("reference", f"{_MODULE}:route_hashed"),
    ],
)


def route_topk(
    logits: torch.Tensor, bias: torch.Tensor, *, top_k: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the `top_k` experts with the largest `sqrt(softplus(logit)) + bias`.

    logits  [T, E] float32
    bias    [E] float32   for choosing only, it does not enter the weights

    Returns (experts [T, k] int64, best first, ties to the lower id; weights [T, k] float32, the
    scores without bias, normalised over the chosen ones, times `scale`). Raises ShapeError.
    """
    check_dtype("logits", logits, torch.float32)
    experts = logits.shape[1]
    check_shape("bias", bias, experts)
    check_dtype("bias", bias, torch.float32)
    if top_k > experts:
        raise ShapeError(f"top_k is {top_k}, of {experts} experts")
    return _route_topk(logits, bias, top_k, scale)


def route_hashed(
    logits: torch.Tensor, table: torch.Tensor, token_ids: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look up the experts of each token's id, and weigh them.

    logits     [T, E] float32
    table      [V, k] int64, contiguous   experts of each id; a device does not check that they are
    token_ids  [T] int64, contiguous      on a device an id that is none is taken for the last

    Returns (experts [T, k] int64, weights [T, k] float32) as `route_topk` does. The launch before
    may write the logits, but neither table nor ids, which are read without waiting. Raises
    ShapeError.
    """
    check_dtype("logits", logits, torch.float32)
    check_shape("table", table, None, None)
    check_shape("token_ids", token_ids, logits.shape[0])
    check_dtype("token_ids", token_ids, torch.int64)
    if not (table.is_contiguous() and token_ids.is_contiguous()):
        raise ShapeError("table and token_ids must be contiguous")
    return _route_hashed(logits, table, token_ids, scale)
