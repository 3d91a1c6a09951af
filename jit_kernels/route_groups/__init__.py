"""Which experts a token goes to, and with what weight, where experts come in groups."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select

__all__ = ["route_groups"]

_MODULE = "jit_kernels.route_groups"
_route_groups: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select(
    "route_groups",
    [
        Backend("triton", f"{_MODULE}.triton_backend:route_groups", why_no_triton, "cuda"),
        Backend("reference", f"{_MODULE}.reference:route_groups"),
    ],
)


def route_groups(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    top_k: int,
    groups: int,
    kept: int,
    normalised: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the `top_k` best experts of the `kept` best groups.

    logits      [T, E] float32   experts of a group lie one after another
    bias        None: an expert's score is the softmax of all, a group is as good as its best one.
                [E] float32: a score is the sigmoid; experts are compared by score + bias, groups by
                the sum of their best two. The bias does not enter the weights
    normalised  weights are divided by their sum over the chosen experts
    scale       of the weights

    Returns (experts [T, k] int64, best first, ties to the lower id; weights [T, k] float32). Ties
    of groups go to the lower one. A token's bits depend on its own logits alone. Raises ShapeError.
    Source: DeepSeek's published code of V2 and V3, `MoEGate`.
    """
    check_shape("logits", logits, None, None)
    check_dtype("logits", logits, torch.float32)
    experts = logits.shape[1]
    if bias is not None:
        check_shape("bias", bias, experts)
        check_dtype("bias", bias, torch.float32)
    if not 0 < kept <= groups or experts % groups:
        raise ShapeError(f"{kept} of {groups} groups cannot be chosen of {experts} experts")
    each = experts // groups
    if not 0 < top_k <= kept * each or (bias is not None and each < 2):
        raise ShapeError(f"top_k is {top_k}, of {kept} groups of {each} experts")
    return _route_groups(logits, bias, top_k, groups, kept, normalised, scale)
