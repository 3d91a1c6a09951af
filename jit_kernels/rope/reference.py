"""Interleaved rotary embedding in plain torch."""

import torch


def rope(x: torch.Tensor, rotation: torch.Tensor, inverse: bool) -> torch.Tensor:
    """Rotate the last channels in place; see `jit_kernels.rope.rope`."""
    width = rotation.shape[-1]
    cos, sin = rotation[:, 0].unsqueeze(1), rotation[:, 1].unsqueeze(1)
    turned = x[..., x.shape[-1] - width :]
    wide = turned.to(torch.float32)
    even, odd = wide.unflatten(-1, (width // 2, 2)).unbind(-1)
    swapped = torch.stack((odd, even), -1).flatten(-2)
    # Products first, then one addition: a fused multiply-add would round differently in tails.
    swapped.mul_(sin)
    straight = wide * cos
    turned.copy_(straight.sub_(swapped) if inverse else straight.add_(swapped))
    return x
