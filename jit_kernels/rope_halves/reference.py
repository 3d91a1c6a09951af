"""Rotary embedding of halves in plain torch."""

import torch


def rope_halves(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotate heads in place; see `jit_kernels.rope_halves.rope_halves`."""
    cos, sin = rotation.unsqueeze(2).unbind(1)
    low, high = x.chunk(2, -1)
    turned = torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
    return x.copy_(turned)
