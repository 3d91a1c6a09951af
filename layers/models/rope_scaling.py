"""How a configuration stretches rotary positions beyond those it was trained on."""

from dataclasses import dataclass

__all__ = ["YarnScaling"]


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN interpolation of rope frequencies.

    original_max_position_embeddings  positions the frequencies were trained on
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int
