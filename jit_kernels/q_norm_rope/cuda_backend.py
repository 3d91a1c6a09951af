"""Queries normed and rotated in CUDA C++, bfloat16 heads of 512; else as the reference."""

import torch

from jit_kernels.cuda_rows import call, is_aligned, is_bf16
from jit_kernels.q_norm_rope import reference

_HEAD, _TURNED = 512, 64


def q_norm_rope(
    q: torch.Tensor, rotation: torch.Tensor, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Norm and rotate; see `jit_kernels.q_norm_rope.q_norm_rope`."""
    tokens, heads, width = q.shape
    rotation = rotation.contiguous()
    usual = (width, rotation.shape[2], out_dtype) == (_HEAD, _TURNED, torch.bfloat16)
    aligned = is_bf16(q) and q.is_contiguous() and is_aligned(q) and is_aligned(rotation)
    if not q.numel() or not usual or not aligned:
        return reference.q_norm_rope(q, rotation, eps, out_dtype)
    out = torch.empty(q.shape, dtype=out_dtype, device=q.device)
    call(
        "norm_heads",
        q.device,
        *(q.data_ptr(), rotation.data_ptr(), out.data_ptr(), tokens, heads, eps),
    )
    return out
