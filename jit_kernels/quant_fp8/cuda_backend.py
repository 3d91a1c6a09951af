"""Norm and rounding of wide rows in CUDA C++; other rows are normed, then rounded."""

import torch

from jit_kernels.quant_fp8 import triton_backend
from jit_kernels.quant_fp8.reference import GROUP, empty_scales
from jit_kernels.rms_norm import cuda_backend


def norm_quant(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm and round rows; see `jit_kernels.quant_fp8.norm_quant`."""
    rows, width = x.shape
    if not rows or not cuda_backend.takes(x, weight):
        normed = cuda_backend.rms_norm(x, weight, eps, torch.float32)
        return triton_backend.quantise_rows(normed)
    codes = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=x.device)
    scales = empty_scales(rows, width // GROUP, x.device)
    cuda_backend.norm(x, weight, eps, codes, scales)
    return codes, scales
