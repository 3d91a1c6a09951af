"""Interleaved rotary embedding in plain torch."""

import torch


def rope(x: torch.Tensor, rotation: torch.Tensor, inverse: bool) -> torch.Tensor:
    """Rotate the last channels in place; see `jit_kernels.rope.rope`."""
    turned = x[..., x.shape[-1] - rotation.shape[-1] :]
    turned.copy_(rotated(turned, rotation, inverse))
    return x


def rotated(x: torch.Tensor, rotation: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Return the rotated channels `x` [T, H, R], leaving `x` as it is."""
    cos, sin = rotation[:, 0].unsqueeze(1), rotation[:, 1].unsqueeze(1)
    wide = x.to(torch.float32)
    even, odd = wide.unflatten(-1, (-1, 2)).unbind(-1)
    # Products first, then one addition: a fused multiply-add would round differently in tails.
    straight, swapped = wide * cos, torch.stack((odd, even), -1).flatten(-2) * sin
    return (straight - swapped if inverse else straight + swapped).to(x.dtype)


def rotations(positions: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return cosines and signed sines; see `jit_kernels.rope.rotations`."""
    signs = torch.ones_like(angles)
    signs[::2] = -1.0
    angle = positions.to(torch.float32).unsqueeze(1) * angles
    return torch.stack((angle.cos(), angle.sin() * signs), 1)
