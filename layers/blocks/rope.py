"""Rotary frequencies, YaRN interpolation, and the rotations of a step's positions."""

import math

import torch
from torch import Tensor

from jit_kernels.rope import rotations
from layers.models.rope_scaling import YarnScaling

__all__ = ["RopeFrequencies", "frequencies"]


def frequencies(width: int, base: float, scaling: YarnScaling | None) -> Tensor:
    """Return the angle per position of each channel pair, [width / 2] float32.

    scaling  None for plain rope. Its cosines are not multiplied by an attention factor.
    Source: layers/NETWORK.md, 3.
    """
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    result = 1.0 / (base**exponents)
    if scaling is None:
        return result

    def corrected(rotations: float) -> float:
        length = scaling.original_max_position_embeddings
        return width * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(corrected(scaling.beta_fast)), 0)
    high: float = min(math.ceil(corrected(scaling.beta_slow)), width - 1)
    if low == high:
        high += 0.001
    ramp = (torch.arange(width // 2, dtype=torch.float32) - low) / (high - low)
    ramp = ramp.clamp(0.0, 1.0)
    return result / scaling.factor * ramp + result * (1.0 - ramp)


class RopeFrequencies:
    """The two sets of angles: layers without compression, and layers with it.

    angles  [2, R] float32   of each channel for a position, in layers without and with compression
    """

    def __init__(self, plain: Tensor, compressed: Tensor, device: torch.device) -> None:
        """Take the angles of each channel pair, [R / 2] float32, of both kinds of layers."""
        self.angles = torch.stack((plain, compressed)).repeat_interleave(2, 1).to(device)

    def rotation(self, positions: Tensor, *, compressed: bool) -> Tensor:
        """Return [T, 2, R] float32 for `jit_kernels.rope.rope`; `positions` is [T] int64."""
        return rotations(positions, self.angles[int(compressed)])
