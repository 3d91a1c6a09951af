"""Where the tokens of a batch stand: positions, and the rotations that follow from them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Places:
    """Rows of one length, every row from position 0; their tokens lie one row after another.

    tokens      [B * T] int64
    plain       [B * T, 2, R] float32 rotations of layers without compression
    compressed  [B * T, 2, R] of layers with it
    blocks      by ratio: [B * T / ratio, 2, R], the rotation of each block's first token
    """

    rows: int
    length: int
    tokens: Tensor
    plain: Tensor
    compressed: Tensor
    blocks: dict[int, Tensor]


def places_of(tokens: Tensor, config: ModelConfig, rope: RopeFrequencies) -> Places:
    """Return the places of `tokens` [B, T]; T is a multiple of `grid(config)`.

    rope  frequencies of `config` on the device of `tokens`
    """
    rows, length = tokens.shape
    positions = torch.arange(length, device=tokens.device)
    plain = rope.rotation(positions, compressed=False)
    compressed = rope.rotation(positions, compressed=True)

    def repeated(rotation: Tensor) -> Tensor:
        return rotation.repeat(rows, 1, 1)

    ratios = set(config.compress_ratios) - {0}
    return Places(
        rows=rows,
        length=length,
        tokens=tokens.reshape(-1),
        plain=repeated(plain),
        compressed=repeated(compressed),
        blocks={ratio: repeated(compressed[::ratio]) for ratio in ratios},
    )


def grid(config: ModelConfig) -> int:
    """Return what a row's length must be a multiple of: whole windows, whole blocks."""
    return math.lcm(config.sliding_window, *(ratio for ratio in config.compress_ratios if ratio))
