"""Turning back and rounding in CUDA C++, bfloat16 heads of 512; else as the reference."""

import torch

from jit_kernels.cuda_rows import call, is_aligned, is_bf16
from jit_kernels.out_rope_quant import reference
from jit_kernels.quant_fp8.reference import GROUP, empty_scales

_HEAD, _TURNED = 512, 64


def out_rope_quant(out: torch.Tensor, rotation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn back and round, [T, H C]; see `jit_kernels.out_rope_quant.out_rope_quant`."""
    tokens, heads, width = out.shape
    rotation = rotation.contiguous()
    usual = (width, rotation.shape[2]) == (_HEAD, _TURNED) and is_bf16(out)
    if not tokens or not usual or not is_aligned(out) or not is_aligned(rotation):
        return reference.out_rope_quant(out, rotation)
    codes = torch.empty((tokens, heads * width), dtype=torch.float8_e4m3fn, device=out.device)
    scales = empty_scales(tokens, heads * width // GROUP, out.device)
    call(
        "round_heads",
        out.device,
        *(out.data_ptr(), out.stride(0), rotation.data_ptr()),
        *(codes.data_ptr(), scales.data_ptr(), scales.stride(1), tokens, heads),
    )
    return codes, scales
