"""Root-mean-square normalisation in plain torch."""

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Normalise the last axis; see `jit_kernels.rms_norm.rms_norm`."""
    wide = x.to(torch.float32).contiguous()
    wide = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    if weight is not None:
        wide = wide * weight
    return wide.to(out_dtype)
