"""Rows of e4m3 in plain torch."""

import torch

from jit_kernels.kv_records.reference import power_of_two, quantise_e4m3
from jit_kernels.rms_norm.reference import rms_norm
from jit_kernels.silu_mul.reference import silu_mul

GROUP = 128


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows; see `jit_kernels.quant_fp8.quantise_rows`."""
    rows, width = x.shape
    groups = x.to(torch.float32).unflatten(1, (width // GROUP, GROUP))
    codes, exponents = quantise_e4m3(groups)
    scales = empty_scales(rows, width // GROUP, x.device)
    return codes.flatten(1), scales.copy_(power_of_two(exponents))


def norm_quant(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm and round rows; see `jit_kernels.quant_fp8.norm_quant`."""
    return quantise_rows(rms_norm(x, weight, eps, torch.float32))


def silu_mul_quant(gate_up: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate, multiply and round rows; see `jit_kernels.quant_fp8.silu_mul_quant`."""
    return quantise_rows(silu_mul(gate_up, limit, torch.float32))


def empty_scales(rows: int, groups: int, device: torch.device) -> torch.Tensor:
    """Return [rows, groups] float32 that lies column by column, columns aligned to 16 bytes."""
    column = -(-rows // 4) * 4
    return torch.empty((groups, column), dtype=torch.float32, device=device).T[:rows]
