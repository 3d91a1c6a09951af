"""Products of bfloat16 rows and bfloat16 weights, in full precision."""

from collections.abc import Callable

import torch

from jit_kernels.checks import check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.registry import Backend, select
from jit_kernels.vendor_library import why_no_deep_gemm
from jit_kernels.vendor_products import note

__all__ = ["bf16_linear", "new_weight", "note_weight"]

_DEEP_GEMM = "jit_kernels.bf16_linear.deep_gemm_backend"
_REFERENCE = "jit_kernels.bf16_linear.reference"


def _why_not_mixed() -> str | None:
    return why_no_deep_gemm() or why_no_hopper()


_bf16_linear: Callable[..., torch.Tensor] = select(
    "bf16_linear",
    [
        Backend("mixed", f"{_DEEP_GEMM}:bf16_linear_mixed", _why_not_mixed, "cuda"),
        Backend("deep_gemm", f"{_DEEP_GEMM}:bf16_linear", why_no_deep_gemm, "cuda"),
        Backend("reference", f"{_REFERENCE}:bf16_linear"),
    ],
)
_bf16_linear_invariant: Callable[..., torch.Tensor] = select(
    "bf16_linear_invariant",
    [
        Backend("deep_gemm", f"{_DEEP_GEMM}:bf16_linear", why_no_deep_gemm, "cuda"),
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
    note_weight(weight, invariant=invariant)
    return weight


def note_weight(weight: torch.Tensor, *, invariant: bool = False) -> None:
    """Remember that products are made with a weight [N, K]; see `jit_kernels.vendor_products`."""
    note("bf16_linear_invariant" if invariant else "bf16_linear", weight.shape, weight)


def bf16_linear(x: torch.Tensor, weight: torch.Tensor, *, invariant: bool = False) -> torch.Tensor:
    """Return `x @ weight.T`, exact products summed in float32.

    x          [T, K] bfloat16
    weight     [N, K] bfloat16
    invariant  a row's bits depend on its own numbers alone; slower where rows are few

    Returns [T, N] float32. "mixed" streams the weight through CUDA C++ for up to eight rows and
    leaves others to DeepGEMM; "deep_gemm" and "reference" give a row the same bits in any company,
    "mixed" only among numbers of rows that go the same way, unless `invariant`. Raises ShapeError.
    """
    check_dtype("x", x, torch.bfloat16)
    check_dtype("weight", weight, torch.bfloat16)
    check_shape("x", x, None, weight.shape[1])
    return (_bf16_linear_invariant if invariant else _bf16_linear)(x, weight)
