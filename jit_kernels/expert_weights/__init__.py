"""Weights of routed experts: their forms on a device, made from those of published files."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.expert_weights.forms import BLOCK, GROUP, Fp4Experts, Fp8Experts
from jit_kernels.registry import Backend, select

__all__ = ["Fp4Experts", "Fp8Experts", "expand_fp4", "expanded", "pack_fp4"]

_pack_fp4: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select(
    "pack_fp4", [Backend("reference", "jit_kernels.expert_weights.reference:pack_fp4")]
)
_expand_fp4: Callable[..., torch.Tensor] = select(
    "expand_fp4",
    [
        Backend(
            "cuda", "jit_kernels.expert_weights.cuda_backend:expand_fp4", why_no_hopper, "cuda"
        ),
        Backend("reference", "jit_kernels.expert_weights.reference:expand_fp4"),
    ],
)


def pack_fp4(packed: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rearrange an fp4 weight once, at load, so that unpacking it takes few instructions.

    packed  [..., N, K / 2] int8 or uint8   two e2m1 codes a byte, the even column low
    scales  [..., N, K / 32] float8_e8m0fnu or uint8

    Returns (words [..., N, K / 4] int16, scales [..., N, K / 32] uint8), the form `Fp4Experts`
    holds. Word 8 g + i has columns 32 g + 8 j + i for j = 0..3, each as a sign bit and three bits
    of size: signs at bits 15, 12, 14, 13, sizes from bits 6, 3, 0, 9. Shifted by 0, 3 or 6 they
    are bfloat16 numbers, 2^-126 times too small. Raises ShapeError, also for a scale above 2,
    which could not make up for that factor.
    """
    check_dtype("packed", packed, torch.int8, torch.uint8)
    check_dtype("scales", scales, torch.float8_e8m0fnu, torch.uint8)
    columns = 2 * packed.shape[-1]
    if columns % GROUP:
        raise ShapeError(f"packed has {columns} columns, expected a multiple of {GROUP}")
    check_shape("scales", scales, *packed.shape[:-1], columns // GROUP)
    return _pack_fp4(packed, scales.view(torch.uint8))


def expand_fp4(
    words: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor, block_scales: torch.Tensor
) -> torch.Tensor:
    """Write packed fp4 weights as fp8 in blocks of 128 x 128, in place of what was there.

    words         [E, N, K / 4] int16, scales [E, N, K / 32] uint8: from `pack_fp4`
    codes         [E, N, K] float8_e4m3fn, contiguous, written; N and K multiples of 128
    block_scales  [E, N / 128, K / 128] float32, contiguous, written

    A block's scale brings its largest group's scale to 2^6, so that 6 becomes 384. Numbers are
    exact as long as no group's scale is below 2^-14 of the block's largest; others are rounded to
    the nearest even. Returns [E] int32: how many numbers were. Raises ShapeError.
    """
    count, rows, columns = codes.shape
    check_dtype("codes", codes, torch.float8_e4m3fn)
    if rows % BLOCK or columns % BLOCK:
        raise ShapeError(f"codes has shape {list(codes.shape)}, expected multiples of {BLOCK}")
    check_shape("words", words, count, rows, columns // 4)
    check_shape("scales", scales, count, rows, columns // GROUP)
    check_shape("block_scales", block_scales, count, rows // BLOCK, columns // BLOCK)
    return _expand_fp4(words, scales, codes, block_scales)


def expanded(parts: Fp4Experts, into: Fp8Experts | None = None) -> tuple[Fp8Experts, torch.Tensor]:
    """Return fp4 experts as fp8, and per expert how many numbers had to be rounded, [E] int32.

    into  experts of the same sizes to write to, a workspace that layers share; new by default
    """
    fp8 = into or _empty_fp8(parts)
    lost = expand_fp4(parts.gate_up, parts.gate_up_scales, fp8.gate_up, fp8.gate_up_scales)
    return fp8, lost + expand_fp4(parts.down, parts.down_scales, fp8.down, fp8.down_scales)


def _empty_fp8(parts: Fp4Experts) -> Fp8Experts:
    count, width, inner = parts.sizes

    def empty(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        codes = parts.down.new_empty((count, rows, columns), dtype=torch.float8_e4m3fn)
        blocks = (count, rows // BLOCK, columns // BLOCK)
        return codes, parts.down.new_empty(blocks, dtype=torch.float32)

    return Fp8Experts(*empty(2 * inner, width), *empty(width, inner))
