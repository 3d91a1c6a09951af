"""Rotation in CUDA C++: channels by eight, 16 bytes aligned; others go through Triton."""

import torch

from jit_kernels.cuda_rows import call, is_aligned, is_bf16
from jit_kernels.rope import triton_backend


def rope(x: torch.Tensor, rotation: torch.Tensor, inverse: bool) -> torch.Tensor:
    """Rotate the last channels in place; see `jit_kernels.rope.rope`."""
    tokens, heads, width = x.shape
    rotation = rotation.contiguous()
    channels = rotation.shape[2]
    uneven = width % 8 or channels % 8 or not x.is_contiguous()
    if uneven or not x.numel() * channels or not is_aligned(x) or not is_aligned(rotation):
        return triton_backend.rope(x, rotation, inverse)
    call(
        "turn_heads",
        x.device,
        *(x.data_ptr(), is_bf16(x), rotation.data_ptr(), tokens, heads, width, channels),
        -1.0 if inverse else 1.0,
    )
    return x
