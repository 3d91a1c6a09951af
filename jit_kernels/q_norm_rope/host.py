"""Queries normed and rotated in C, one after the other."""

import torch

from jit_kernels.rms_norm.host import rms_norm
from jit_kernels.rope.host import rope


def q_norm_rope(
    q: torch.Tensor, rotation: torch.Tensor, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Norm and rotate; see `jit_kernels.q_norm_rope.q_norm_rope`."""
    return rope(rms_norm(q, None, eps, out_dtype), rotation, False)
