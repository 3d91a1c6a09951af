"""Rows of e4m3 with a power-of-two scale for each 128 channels, as fp8 products take them."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper, why_no_triton
from jit_kernels.quant_fp8.reference import GROUP
from jit_kernels.registry import Backend, select

__all__ = ["GROUP", "norm_quant", "quantise_rows", "silu_mul_quant"]

_MODULE = "jit_kernels.quant_fp8"


def _selected(
    op: str, backend: str, why_not: Callable[[], str | None]
) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    return select(
        op,
        [
            Backend(backend, f"{_MODULE}.{backend}_backend:{op}", why_not, "cuda"),
            Backend("reference", f"{_MODULE}.reference:{op}"),
        ],
    )


_quantise_rows = _selected("quantise_rows", "triton", why_no_triton)
_norm_quant = _selected("norm_quant", "cuda", why_no_hopper)
_silu_mul_quant = _selected("silu_mul_quant", "triton", why_no_triton)


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows to e4m3 with the scale 2^ceil(log2(amax / 448)) for each 128 channels.

    x  [T, C] float32 or bfloat16, C a multiple of 128

    Returns (codes [T, C] float8_e4m3fn, scales [T, C / 128] float32). A group's maximum is floored
    at 1e-4. Scales lie column by column, each column starting at a multiple of four numbers, which
    is what DeepGEMM takes without copying. Raises ShapeError.
    Source: layers/NETWORK.md, 7 (rows of fp8 products).
    """
    check_dtype("x", x, torch.float32, torch.bfloat16)
    _check_groups("x", x, x.shape[-1])
    return _quantise_rows(x)


def norm_quant(
    x: torch.Tensor, weight: torch.Tensor | None, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `quantise_rows(rms_norm(x, weight))`, float32 in between.

    x       [T, C] float32 or bfloat16, C a multiple of 128
    weight  [C] float32, contiguous, or None for none

    Returns (codes, scales) as `quantise_rows` does. Raises ShapeError.
    """
    check_dtype("x", x, torch.float32, torch.bfloat16)
    _check_groups("x", x, x.shape[-1])
    if weight is not None:
        check_shape("weight", weight, x.shape[-1])
        check_dense("weight", weight, torch.float32)
    return _norm_quant(x, weight, eps)


def silu_mul_quant(gate_up: torch.Tensor, *, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `quantise_rows(silu_mul(gate_up))`, float32 in between.

    gate_up  [R, 2 I] float32 or bfloat16   gate channels, then up channels; I a multiple of 128

    Returns (codes [R, I], scales [R, I / 128]) as `quantise_rows` does. Raises ShapeError.
    """
    check_dtype("gate_up", gate_up, torch.float32, torch.bfloat16)
    _check_groups("gate_up", gate_up, gate_up.shape[-1] // 2)
    return _silu_mul_quant(gate_up, limit)


def _check_groups(name: str, x: torch.Tensor, channels: int) -> None:
    check_shape(name, x, None, None)
    if not channels or channels % GROUP:
        raise ShapeError(f"{name} gives {channels} channels, expected a multiple of {GROUP}")
