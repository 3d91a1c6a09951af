"""Rotary frequencies, plain or stretched, and the rotations of a step's positions."""

import math
from typing import assert_never

import torch
from torch import Tensor

from jit_kernels.rope import rotations
from layers.models.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling

__all__ = ["HalfRope", "PairRope", "RopeFrequencies", "frequencies"]


def frequencies(width: int, base: float, scaling: RopeScaling | None) -> Tensor:
    """Return the angle per position of each channel pair, [width / 2] float32.

    scaling  None for plain rope. Its cosines are not multiplied by an attention factor.
    Source: layers/NETWORK.md, 3; Llama 3's scaling is that of its published code.
    """
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    plain = 1.0 / (base**exponents)
    match scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling():
            return _blended(plain, scaling)
        case YarnScaling():
            return _interpolated(plain, width, base, scaling)
        case _:
            assert_never(scaling)


def _blended(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Return Llama 3's frequencies."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain / scaling.factor * (1.0 - kept) + plain * kept


def _interpolated(plain: Tensor, width: int, base: float, scaling: YarnScaling) -> Tensor:
    """Return YaRN's frequencies."""

    def corrected(rotations: float) -> float:
        length = scaling.original_max_position_embeddings
        return width * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = corrected(scaling.beta_fast), corrected(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    ramp = (torch.arange(width // 2, dtype=torch.float32) - low) / (high - low)
    ramp = ramp.clamp(0.0, 1.0)
    return plain / scaling.factor * ramp + plain * (1.0 - ramp)


class PairRope:
    """Rotations of a head's last channels, channel 2i with channel 2i + 1."""

    def __init__(self, angles: Tensor, *, attention_factor: float, device: torch.device) -> None:
        """Take the angle per position of each channel pair, [R / 2] float32.

        attention_factor  of cosines and sines
        """
        self._angles = angles.repeat_interleave(2).to(device)
        self._factor = attention_factor

    def rotation(self, positions: Tensor) -> Tensor:
        """Return [T, 2, R] for `jit_kernels.rope.rope`; `positions` is [T] int64."""
        return rotations(positions, self._angles) * self._factor


class HalfRope(PairRope):
    """Rotations of whole heads, channel i with channel i + D / 2."""

    def rotation(self, positions: Tensor) -> Tensor:
        """Return [T, 2, D / 2] for `jit_kernels.rope_halves`; `positions` is [T] int64."""
        return super().rotation(positions)[:, :, 1::2].contiguous()


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
