"""Rotary frequencies, YaRN interpolation, and the rotations of a step's positions."""

import math

import torch
from torch import Tensor

from layers.config import ModelConfig, YarnScaling

__all__ = ["RopeFrequencies", "frequencies"]


def frequencies(width: int, base: float, scaling: YarnScaling | None) -> Tensor:
    """Return the angle per position of each channel pair, [width / 2] float32.

    scaling  None for plain rope. Its cosines are not multiplied by an attention factor.
    Source: reference section 3.
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
    """The two sets of angles: layers without compression, and layers with it."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        """Compute both sets."""
        width = config.qk_rope_head_dim
        plain = frequencies(width, config.rope_theta, None)
        compressed = frequencies(width, config.compress_rope_theta, config.rope_scaling)
        self._plain = plain.repeat_interleave(2).to(device)
        self._compressed = compressed.repeat_interleave(2).to(device)
        self._signs = torch.tensor([-1.0, 1.0], device=device).repeat(width // 2)

    def rotation(self, positions: Tensor, *, compressed: bool) -> Tensor:
        """Return [T, 2, R] float32 for `jit_kernels.rope.rope`; `positions` is [T] int64."""
        angles = self._compressed if compressed else self._plain
        angle = positions.to(torch.float32).unsqueeze(1) * angles
        return torch.stack((angle.cos(), angle.sin() * self._signs), 1)
