"""How a configuration stretches rotary positions beyond those it was trained on."""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["LinearScaling", "Llama3Scaling", "RopeScaling", "YarnScaling"]


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN interpolation of rope frequencies.

    original_max_position_embeddings  positions the frequencies were trained on
    truncate                          the ramp begins and ends at whole channel pairs
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3's: long wavelengths are divided, short ones kept, those between are blended.

    low_freq_factor, high_freq_factor  wavelengths in an original context where that begins and ends
    original_max_position_embeddings   positions the frequencies were trained on
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All frequencies divided by a factor."""

    factor: float


RopeScaling: TypeAlias = YarnScaling | Llama3Scaling | LinearScaling
