"""Queries normed head by head, then rotated."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["q_norm_rope"]

_MODULE = "jit_kernels.q_norm_rope"
_q_norm_rope: Callable[..., torch.Tensor] = select(
    "q_norm_rope",
    [
        Backend("cuda", f"{_MODULE}.cuda_backend:q_norm_rope", why_no_hopper, "cuda"),
        on_host("q_norm_rope.host:q_norm_rope"),
        Backend("reference", f"{_MODULE}.reference:q_norm_rope"),
    ],
)


def q_norm_rope(
    q: torch.Tensor,
    rotation: torch.Tensor,
    *,
    eps: float,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return `rope(rms_norm(q, None))`: normed over each head, cast, its last channels rotated.

    q          [T, H, C] float32 or bfloat16; not changed
    rotation   [T, 2, R] float32, as `jit_kernels.rope.rope` takes it; R and C - R even
    out_dtype  dtype of the result, that of `q` by default; it is rounded before and after turning

    Returns [T, H, C], contiguous. Raises ShapeError.
    """
    check_dtype("q", q, torch.float32, torch.bfloat16)
    check_shape("q", q, None, None, None)
    check_shape("rotation", rotation, q.shape[0], 2, None)
    check_dtype("rotation", rotation, torch.float32)
    turned, plain = rotation.shape[2], q.shape[2] - rotation.shape[2]
    if plain < 0 or plain % 2 or turned % 2:
        raise ShapeError(f"of {q.shape[2]} channels {turned} turn, expected whole pairs")
    return _q_norm_rope(q, rotation, eps, out_dtype or q.dtype)
