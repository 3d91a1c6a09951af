"""What one launch does at once, as the references after each other."""

import torch

from jit_kernels.hyper_connection.reference import mhc_pre
from jit_kernels.rms_norm.reference import rms_norm


def mhc_pre_norm(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    *,
    iterations: int,
    norm_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mix streams and norm the result; see `jit_kernels.hyper_connection.mhc_pre_norm`."""
    mixed, post, mixing = mhc_pre(
        streams, fn, base, scale, iterations=iterations, norm_eps=norm_eps, hc_eps=hc_eps
    )
    return rms_norm(mixed, weight, norm_eps, streams.dtype), post, mixing
