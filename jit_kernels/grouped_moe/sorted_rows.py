"""Rows sorted by expert, and how many blocks of them there will be, most likely."""

import math
from typing import NamedTuple

import torch

CHANNELS = 128
# Rows of a block. Those that are padding are multiplied, too, so that blocks are small where
# experts have few rows each; where they have many, small blocks cost more than they save.
SMALL, LARGE = 64, 128
_MOST_SMALL = 96
# Estimates may fall short by so many standard deviations of a block's last rows, added up.
_MARGIN = 2.0


class SortedRows(NamedTuple):
    """Rounded rows in blocks of one size, each of one expert, in two regions of blocks.

    codes    [blocks * size, K] float8_e4m3fn
    scales   [blocks * size * K / 128] float32: of the first region column by column, then of the
             second, so that each can be handed over without a copy
    member   [blocks * size] int32   expert of each row, -1 for rows that nobody wants
    first    blocks of the first region
    size     rows of a block
    """

    codes: torch.Tensor
    scales: torch.Tensor
    member: torch.Tensor
    first: int
    size: int

    def region_scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scales of both regions, [rows, K / 128] each."""
        columns = self.codes.shape[1] // CHANNELS
        rows = self.first * self.size
        head, tail = self.scales.split((rows * columns, self.scales.numel() - rows * columns))
        return head.view(columns, rows).T, tail.view(columns, -1).T


def block_size(pairs: int, num_experts: int) -> int:
    """Return how many rows a block has where so many pairs of row and expert are sorted."""
    return SMALL if pairs <= _MOST_SMALL * num_experts else LARGE


def likely_blocks(pairs: int, num_experts: int) -> int:
    """Return how many blocks `pairs` of evenly or smoothly spread rows hardly ever exceed.

    Evenly: counts about their mean as dice fall. Smoothly: last blocks half full on average.
    """
    size, mean = block_size(pairs, num_experts), pairs / num_experts
    spread = math.sqrt(2 * mean)
    even, block = 0.0, 0
    while block * size <= mean + 8 * spread:
        even += 0.5 * math.erfc((block * size + 0.5 - mean) / spread) if spread else 0.0
        block += 1
    smooth = min(pairs, num_experts * (mean / size + 0.5))
    return math.ceil(max(num_experts * even, smooth) + _MARGIN * math.sqrt(num_experts))
