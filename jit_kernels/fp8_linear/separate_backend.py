"""Products of rows that are rounded first, by a call of its own; each call has its own backend."""

import torch

from jit_kernels.fp8_linear import fp8_linear
from jit_kernels.quant_fp8 import norm_quant, quantise_rows


def fp8_linear_of(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    invariant: bool,
) -> torch.Tensor:
    """Round, then multiply; see `jit_kernels.fp8_linear.fp8_linear_of`."""
    rows = quantise_rows(x) if norm is None else norm_quant(x, norm, eps=eps)
    return fp8_linear(*rows, weight, weight_scales, invariant=invariant)


def rounds_rows(x: torch.Tensor, norm: torch.Tensor | None) -> bool:
    """Say no; see `jit_kernels.fp8_linear.rounds_rows`."""
    return False
