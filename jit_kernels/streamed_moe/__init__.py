"""Routed experts for few rows: each chosen expert's weights are read once, in 4 or 8 bits."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper, why_no_triton
from jit_kernels.expert_weights import Fp4Experts, Fp8Experts
from jit_kernels.registry import Backend, select

__all__ = ["streamed_moe"]

_streamed_moe: Callable[..., torch.Tensor] = select(
    "streamed_moe",
    [
        Backend(
            "cuda", "jit_kernels.streamed_moe.cuda_backend:streamed_moe", why_no_hopper, "cuda"
        ),
        Backend(
            "triton", "jit_kernels.streamed_moe.triton_backend:streamed_moe", why_no_triton, "cuda"
        ),
        Backend("reference", "jit_kernels.streamed_moe.reference:streamed_moe"),
    ],
)


def streamed_moe(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    parts: Fp8Experts | Fp4Experts,
    *,
    limit: float,
    plus: torch.Tensor | Callable[[], torch.Tensor] | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    size: int | None = None,
) -> torch.Tensor:
    """Return `plus + sum_k weights_k * W2 silu_mul(W13 x)` over the experts chosen for each row.

    x          [T, d] bfloat16; activations are never rounded to fewer bits
    experts    [T, k] int32 or int64; ids outside the experts in `parts` count as zero
    weights    [T, k] float32
    limit      clamp of the SwiGLU, see `silu_mul`
    plus       [T, d] bfloat16 or float32, what the shared expert gave, or what returns it, called
               when all but the last sum is launched, and then read by nobody else before the launch
               after has waited; None for nothing
    out_dtype  bfloat16 or float32
    size       8, 16, 32 or 64 rows to a block of one expert; by default what suits T * k / E

    Returns [T, d]. The inner activations are rounded to bfloat16; the sum runs over k in order,
    then comes `plus`. Nothing waits for the device, so the call can be part of a graph. With `size`
    given, a row's bits do not depend on its company; by default they do on T alone.
    Raises ShapeError.
    """
    count, width, _ = parts.sizes
    check_dtype("x", x, torch.bfloat16)
    check_shape("x", x, None, width)
    check_dtype("weights", weights, torch.float32)
    check_shape("weights", weights, x.shape[0], experts.shape[-1])
    check_shape("experts", experts, x.shape[0], None)
    if out_dtype not in (torch.bfloat16, torch.float32):
        raise ShapeError(f"the result is to be {out_dtype}, expected torch.bfloat16 or float32")
    if size not in (None, 8, 16, 32, 64):
        raise ShapeError(f"size is {size}, expected 8, 16, 32 or 64")
    chosen = size or _block_size(experts.numel() / count)

    def added() -> torch.Tensor | None:
        given = plus() if callable(plus) else plus
        if given is not None:
            check_shape("plus", given, *x.shape)
        return given

    if not callable(plus):
        added()  # what is at hand is refused before anything runs
    return _streamed_moe(x, experts, weights, parts, limit, added, out_dtype, chosen)


def _block_size(mean: float) -> int:
    """Return rows to a block for the mean number of rows of an expert: seldom a second block."""
    return next((size for most, size in ((4, 8), (10, 16), (22, 32)) if mean <= most), 64)
