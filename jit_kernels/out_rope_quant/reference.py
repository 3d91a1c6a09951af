"""Turning back and rounding, as the references after each other."""

import torch

from jit_kernels.quant_fp8.reference import quantise_rows
from jit_kernels.rope.reference import rope


def out_rope_quant(out: torch.Tensor, rotation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn back and round, [T, H C]; see `jit_kernels.out_rope_quant.out_rope_quant`."""
    return quantise_rows(rope(out.to(torch.float32, copy=True), rotation, True).flatten(1))
