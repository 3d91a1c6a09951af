"""The two forms in which routed experts lie in device memory."""

from dataclasses import dataclass
from typing import Self

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.vendor_products import note

BLOCK = 128
GROUP = 32


@dataclass(frozen=True, slots=True)
class Fp8Experts:
    """e4m3 weights with a float32 power-of-two scale for each 128 x 128 block; contiguous.

    gate_up         [E, 2 I, d]               W1 rows, then W3 rows
    gate_up_scales  [E, 2 I / 128, d / 128]
    down            [E, d, I]                 W2
    down_scales     [E, d / 128, I / 128]
    Raises ShapeError if a size does not fit, or I or d is not a multiple of 128.
    """

    gate_up: torch.Tensor
    gate_up_scales: torch.Tensor
    down: torch.Tensor
    down_scales: torch.Tensor

    def __post_init__(self) -> None:
        count, width, inner = self.sizes
        _check_sizes(width, inner)
        check_dtype("gate_up", self.gate_up, torch.float8_e4m3fn)
        check_dtype("down", self.down, torch.float8_e4m3fn)
        check_shape("gate_up", self.gate_up, count, 2 * inner, width)
        blocks = (2 * inner // BLOCK, width // BLOCK)
        check_shape("gate_up_scales", self.gate_up_scales, count, *blocks)
        check_shape("down_scales", self.down_scales, count, width // BLOCK, inner // BLOCK)

    @classmethod
    def zeros(
        cls,
        count: int,
        width: int,
        inner: int,
        device: torch.device,
        *,
        chosen: int = 0,
        streamed: int = 0,
    ) -> Self:
        """Return zeros for so many experts.

        chosen    experts of a row, where more than `streamed` rows are sorted by expert; 0: they
                  never are
        """

        def zeros(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
            codes = torch.zeros((count, rows, columns), dtype=torch.float8_e4m3fn, device=device)
            blocks = (count, rows // BLOCK, columns // BLOCK)
            return codes, torch.zeros(blocks, dtype=torch.float32, device=device)

        experts = cls(*zeros(2 * inner, width), *zeros(width, inner))
        if chosen:
            note("grouped_moe", (count, width, inner, chosen), experts.down, above=streamed)
        return experts

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of experts, width d, inner width I."""
        count, width, inner = self.down.shape
        return count, width, inner


@dataclass(frozen=True, slots=True)
class Fp4Experts:
    """e2m1 weights, four to a word as `pack_fp4` arranges them, and e8m0 scales; contiguous.

    gate_up         [E, 2 I, d / 4] int16     W1 rows, then W3 rows
    gate_up_scales  [E, 2 I, d / 32] uint8    b stands for 2^(b - 127), at most 128
    down            [E, d, I / 4] int16       W2
    down_scales     [E, d, I / 32] uint8
    Raises ShapeError if a size does not fit, or I or d is not a multiple of 128.
    """

    gate_up: torch.Tensor
    gate_up_scales: torch.Tensor
    down: torch.Tensor
    down_scales: torch.Tensor

    def __post_init__(self) -> None:
        count, width, inner = self.sizes
        _check_sizes(width, inner)
        check_dtype("gate_up", self.gate_up, torch.int16)
        check_dtype("down", self.down, torch.int16)
        check_shape("gate_up", self.gate_up, count, 2 * inner, width // 4)
        check_shape("gate_up_scales", self.gate_up_scales, count, 2 * inner, width // GROUP)
        check_shape("down_scales", self.down_scales, count, width, inner // GROUP)

    @classmethod
    def zeros(cls, count: int, width: int, inner: int, device: torch.device) -> Self:
        """Return zeros for so many experts."""

        def zeros(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
            words = torch.zeros((count, rows, columns // 4), dtype=torch.int16, device=device)
            groups = (count, rows, columns // GROUP)
            return words, torch.zeros(groups, dtype=torch.uint8, device=device)

        return cls(*zeros(2 * inner, width), *zeros(width, inner))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of experts, width d, inner width I."""
        count, width, words = self.down.shape
        return count, width, 4 * words


def _check_sizes(width: int, inner: int) -> None:
    for name, size in (("d", width), ("I", inner)):
        if not size or size % BLOCK:
            raise ShapeError(f"{name} is {size}, expected a multiple of {BLOCK}")
