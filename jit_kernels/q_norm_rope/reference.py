"""Queries normed and rotated, as the references after each other."""

import torch

from jit_kernels.rms_norm.reference import rms_norm
from jit_kernels.rope.reference import rope


def q_norm_rope(
    q: torch.Tensor, rotation: torch.Tensor, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Norm and rotate; see `jit_kernels.q_norm_rope.q_norm_rope`."""
    normed = rms_norm(q, None, eps, out_dtype)
    # Without a copy a norm that changes no dtype could be the input itself.
    return rope(normed.clone(memory_format=torch.contiguous_format), rotation, False)
