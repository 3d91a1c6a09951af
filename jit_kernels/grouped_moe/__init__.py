"""Routed experts for many rows: fp8 products over rows sorted by expert."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.expert_weights import Fp8Experts
from jit_kernels.quant_fp8 import GROUP
from jit_kernels.registry import Backend, select
from jit_kernels.vendor_library import why_no_deep_gemm

__all__ = ["grouped_moe"]

_grouped_moe: Callable[..., torch.Tensor] = select(
    "grouped_moe",
    [
        Backend(
            "deep_gemm",
            "jit_kernels.grouped_moe.deep_gemm_backend:grouped_moe",
            why_no_deep_gemm,
            "cuda",
        ),
        Backend("reference", "jit_kernels.grouped_moe.reference:grouped_moe"),
    ],
)


def grouped_moe(
    codes: torch.Tensor,
    scales: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    parts: Fp8Experts,
    *,
    limit: float,
    plus: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Return `plus + sum_k weights_k * W2 silu_mul(W13 x)` over the experts chosen for each row.

    codes      [T, d] float8_e4m3fn, of x; from `quantise_rows`, like
    scales     [T, d / 128] float32
    experts    [T, k] int32 or int64; ids outside the experts in `parts` count as zero
    weights    [T, k] float32
    limit      clamp of the SwiGLU, see `silu_mul`
    plus       [T, d] bfloat16 or float32, what the shared expert gave; None for nothing
    out_dtype  bfloat16 or float32

    Returns [T, d]. Gated inner activations are rounded to e4m3 in groups of 128 channels like rows,
    as the published model does, products to bfloat16; the sum runs over k in order in float32, then
    comes `plus`. Rows of an expert are padded to 64, or to 128 where they are many; nothing waits
    for the device. Workspace: about (T k + 64 E) * (7 I + 3 d) bytes. Raises ShapeError.
    """
    width = parts.sizes[1]
    check_dtype("codes", codes, torch.float8_e4m3fn)
    check_shape("codes", codes, None, width)
    check_dtype("scales", scales, torch.float32)
    check_shape("scales", scales, codes.shape[0], width // GROUP)
    check_dtype("weights", weights, torch.float32)
    check_shape("weights", weights, codes.shape[0], experts.shape[-1])
    check_shape("experts", experts, codes.shape[0], None)
    if plus is not None:
        check_shape("plus", plus, *codes.shape)
    if out_dtype not in (torch.bfloat16, torch.float32):
        raise ShapeError(f"the result is to be {out_dtype}, expected torch.bfloat16 or float32")
    return _grouped_moe(codes, scales, experts, weights, parts, limit, plus, out_dtype)
