"""Products of bfloat16 rows and bfloat16 weights, in full precision."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select
from jit_kernels.vendor_library import why_no_deep_gemm
from jit_kernels.vendor_products import note

__all__ = ["bf16_linear", "new_weight"]

_TRITON = "jit_kernels.bf16_linear.triton_backend"
_DEEP_GEMM = "jit_kernels.bf16_linear.deep_gemm_backend"
_REFERENCE = "jit_kernels.bf16_linear.reference"


_bf16_linear: Callable[..., torch.Tensor] = select(
    "bf16_linear",
    [
        Backend("mixed", f"{_DEEP_GEMM}:bf16_linear_mixed", why_no_deep_gemm, "cuda"),
        Backend("deep_gemm", f"{_DEEP_GEMM}:bf16_linear", why_no_deep_gemm, "cuda"),
        Backend("triton", f"{_TRITON}:bf16_linear", why_no_triton, "cuda"),
        Backend("reference", f"{_REFERENCE}:bf16_linear"),
    ],
)
_bf16_linear_invariant: Callable[..., torch.Tensor] = select(
    "bf16_linear_invariant",
    [
        Backend("deep_gemm", f"{_DEEP_GEMM}:bf16_linear", why_no_deep_gemm, "cuda"),
        Backend("triton", f"{_TRITON}:bf16_linear_invariant", why_no_triton, "cuda"),
        Backend("reference", f"{_REFERENCE}:bf16_linear"),
    ],
)


def new_weight(
    rows: int, width: int, device: torch.device, *, invariant: bool = False
) -> torch.Tensor:
    """Return zeros for a weight [rows, width], as `bf16_linear` takes it.

    invariant  as products of it are
    """
    weight = torch.zeros((rows, width), dtype=torch.bfloat16, device=device)
    note("bf16_linear_invariant" if invariant else "bf16_linear", (rows, width), weight)
    return weight


def bf16_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    out_dtype: torch.dtype = torch.float32,
    invariant: bool = False,
) -> torch.Tensor:
    """Return `x @ weight.T`, exact products summed in float32.

    x          [T, K] bfloat16
    weight     [N, K] bfloat16
    out_dtype  float32 or bfloat16
    invariant  a row's bits depend on its own numbers alone; slower where rows are few

    Returns [T, N]. "mixed" streams the weight through CUDA C++ or Triton for few rows and
    leaves many to DeepGEMM; "deep_gemm" and "reference" give a row the same bits in any company,
    "mixed" and "triton" only among numbers of rows that share a line of their table, unless
    `invariant`. Raises ShapeError.
    """
    _check(x, weight, out_dtype)
    check_shape("x", x, None, weight.shape[1])
    multiply = _bf16_linear_invariant if invariant else _bf16_linear
    return multiply(x, weight, out_dtype)


def _check(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> None:
    check_dtype("x", x, torch.bfloat16)
    check_dtype("weight", weight, torch.bfloat16)
    if out_dtype not in (torch.bfloat16, torch.float32):
        raise ShapeError(f"the result is to be {out_dtype}, expected torch.bfloat16 or float32")
