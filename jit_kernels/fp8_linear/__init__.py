"""Products of e4m3 rows and e4m3 weights in blocks of 128, dense and group by group."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.fp8_linear.reference import BLOCK
from jit_kernels.quant_fp8 import norm_quant
from jit_kernels.registry import Backend, chosen, select
from jit_kernels.vendor_library import why_no_deep_gemm
from jit_kernels.vendor_products import note

__all__ = [
    "BLOCK",
    "fp8_linear",
    "fp8_linear_grouped",
    "fp8_linear_of",
    "new_weight",
    "rounds_rows",
]


_DEEP_GEMM = "jit_kernels.fp8_linear.deep_gemm_backend"
_REFERENCE = "jit_kernels.fp8_linear.reference"
_ONE_ROW = "jit_kernels.fp8_linear.one_row_backend"
_SEPARATE = "jit_kernels.fp8_linear.separate_backend"


def _why_not_mixed() -> str | None:
    return why_no_deep_gemm() or why_no_hopper()


def _selected(op: str) -> Callable[..., torch.Tensor]:
    return select(
        op,
        [
            Backend("mixed", f"{_DEEP_GEMM}:{op}_mixed", _why_not_mixed, "cuda"),
            Backend("deep_gemm", f"{_DEEP_GEMM}:{op}", why_no_deep_gemm, "cuda"),
            Backend("reference", f"{_REFERENCE}:{op}"),
        ],
    )


def _selected_invariant(op: str) -> Callable[..., torch.Tensor]:
    return select(
        f"{op}_invariant",
        [
            Backend("deep_gemm", f"{_DEEP_GEMM}:{op}", why_no_deep_gemm, "cuda"),
            Backend("reference", f"{_REFERENCE}:{op}"),
        ],
    )


_fp8_linear = _selected("fp8_linear")
_fp8_linear_grouped = _selected("fp8_linear_grouped")
_fp8_linear_invariant = _selected_invariant("fp8_linear")
_fp8_linear_grouped_invariant = _selected_invariant("fp8_linear_grouped")


def new_weight(
    parts: Mapping[str, int],
    width: int,
    device: torch.device,
    *,
    groups: int = 0,
    invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return zeros for a weight and its scales, as `fp8_linear` or `fp8_linear_grouped` takes them.

    parts      name -> output rows, one after another; names are for errors
    groups     of `fp8_linear_grouped`; 0: there are none
    invariant  as products of it are

    Raises ShapeError unless `width` and the rows of each part are multiples of 128.
    """
    for name, size in (("the input", width), *parts.items()):
        if not size or size % BLOCK:
            raise ShapeError(f"{name} has {size} channels, expected a multiple of {BLOCK}")
    many, rows = (groups,) if groups else (), sum(parts.values())
    shape = (*many, rows, width)
    codes = torch.zeros(shape, dtype=torch.float8_e4m3fn, device=device)
    blocks = (*many, rows // BLOCK, width // BLOCK)
    op = "fp8_linear_grouped" if groups else "fp8_linear"
    note(f"{op}_invariant" if invariant else op, shape, codes)
    return codes, torch.zeros(blocks, dtype=torch.float32, device=device)


def fp8_linear(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    invariant: bool = False,
) -> torch.Tensor:
    """Return `(codes * scales) @ (weight * weight_scales).T`, summed in float32 per 128 channels.

    codes          [T, K] float8_e4m3fn, K a multiple of 128; from `quantise_rows`
    scales         [T, K / 128] float32, of any layout; column by column spares a copy
    weight         [N, K] float8_e4m3fn
    weight_scales  [ceil(N / 128), K / 128] float32, contiguous
    invariant      a row's bits depend on its own numbers alone; slower where rows are few

    Returns [T, N] bfloat16. "mixed" streams the weight through CUDA C++ for up to eight rows and
    leaves others to DeepGEMM; "deep_gemm" and "reference" give a row the same bits in any company,
    "mixed" only among numbers of rows that go the same way, unless `invariant`. Raises ShapeError.
    """
    rows, depth = codes.shape[0], weight.shape[1]
    check_dtype("codes", codes, torch.float8_e4m3fn)
    _check_weight(weight, weight_scales)
    check_shape("codes", codes, None, depth)
    check_shape("scales", scales, rows, depth // BLOCK)
    check_shape("weight_scales", weight_scales, -(-weight.shape[0] // BLOCK), depth // BLOCK)
    multiply = _fp8_linear_invariant if invariant else _fp8_linear
    return multiply(codes, scales, weight, weight_scales)


def fp8_linear_grouped(
    codes: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    invariant: bool = False,
) -> torch.Tensor:
    """Return each group's product, `fp8_linear` of `codes[:, g]` and `weight[g]`.

    codes          [T, G, K] float8_e4m3fn: rows of G * K channels from `quantise_rows`, viewed
    scales         [T, G, K / 128] float32
    weight         [G, N, K] float8_e4m3fn
    weight_scales  [G, ceil(N / 128), K / 128] float32, contiguous

    Returns [T, G, N] bfloat16, with the promises of `fp8_linear`. Raises ShapeError.
    """
    groups, columns, depth = weight.shape
    check_dtype("codes", codes, torch.float8_e4m3fn)
    _check_weight(weight, weight_scales)
    check_shape("codes", codes, None, groups, depth)
    check_shape("scales", scales, codes.shape[0], groups, depth // BLOCK)
    check_shape("weight_scales", weight_scales, groups, -(-columns // BLOCK), depth // BLOCK)
    multiply = _fp8_linear_grouped_invariant if invariant else _fp8_linear_grouped
    return multiply(codes, scales, weight, weight_scales)


def _why_separate() -> str | None:
    """Return why a row's bits would not be those of two calls, None if they are."""
    for op, backend in ((fp8_linear, "mixed"), (norm_quant, "cuda")):
        found = chosen("cuda").get(op.__name__)
        if found != backend:
            return f"{op.__name__} is left to {found}"
    return None


def _selected_of(function: str) -> Callable[..., Any]:
    return select(
        "fp8_linear_of",
        [
            Backend("cuda", f"{_ONE_ROW}:{function}", _why_separate, "cuda"),
            Backend("separate", f"{_SEPARATE}:{function}"),
        ],
    )


# What is called separately, is called by its public name: these come after it.
_fp8_linear_of = _selected_of("fp8_linear_of")
_rounds_rows = _selected_of("rounds_rows")


def fp8_linear_of(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    invariant: bool = False,
) -> torch.Tensor:
    """Return `fp8_linear` of `quantise_rows(x)`, or of `norm_quant(x, norm, eps=eps)`, to the bit.

    x              [T, K] float32 or bfloat16, K a multiple of 128
    weight         [N, K] float8_e4m3fn
    weight_scales  [ceil(N / 128), K / 128] float32, contiguous
    norm           [K] float32, the weight of a norm that comes first; None: there is no norm
    eps            of the norm
    invariant      as in `fp8_linear`

    Returns [T, N] bfloat16. "cuda" needs one launch where `rounds_rows` says so, and makes two
    calls otherwise; "separate" always makes two. Raises ShapeError.
    """
    columns, depth = weight.shape
    check_dtype("x", x, torch.float32, torch.bfloat16)
    _check_weight(weight, weight_scales)
    check_shape("x", x, None, depth)
    check_shape("weight_scales", weight_scales, -(-columns // BLOCK), depth // BLOCK)
    if norm is not None:
        check_dtype("norm", norm, torch.float32)
        check_shape("norm", norm, depth)
    return _fp8_linear_of(x, weight, weight_scales, norm, eps, invariant)


def rounds_rows(x: torch.Tensor, norm: torch.Tensor | None = None) -> bool:
    """Say whether `fp8_linear_of`, unless invariant, rounds such rows as it multiplies them.

    Several products of the same rows need no codes then; otherwise they had better share them.
    """
    return _rounds_rows(x, norm)


def _check_weight(weight: torch.Tensor, weight_scales: torch.Tensor) -> None:
    check_dtype("weight", weight, torch.float8_e4m3fn)
    check_dtype("weight_scales", weight_scales, torch.float32)
    if weight.shape[-1] % BLOCK:
        raise ShapeError(f"weight has {weight.shape[-1]} channels, expected a multiple of {BLOCK}")
