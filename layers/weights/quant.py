"""Weight formats of published checkpoints, to plain numbers and back.

    fp8 block   e4m3 [out, in]; one e8m0 scale per 128 x 128 block: [ceil(out/128), ceil(in/128)]
    fp4         two e2m1 codes a byte, int8 [out, in/2], the even column in the low nibble; one
                e8m0 scale per 32 inputs: [out, ceil(in/32)]

An e8m0 byte b stands for 2^(b - 127), and 255 for NaN. Every product of a code and a scale is
exact in float32. Source: DeepSeek's inference code for V4, `convert.py` and `kernel.py`.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

FP8_BLOCK = 128
FP4_GROUP = 32
FP8_MAX = 448.0
FP4_MAX = 6.0
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

_E8M0_BIAS, _E8M0_NAN = 127, 255
# A weight is expanded in slabs of rows, so that a shard needs no float32 copy of its largest
# tensor.
_SLAB_NUMBERS = 1 << 22


def fp8_scale_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """Return the shape of the scales of an fp8 block weight of `shape` [out, in]."""
    return -(-shape[0] // FP8_BLOCK), -(-shape[1] // FP8_BLOCK)


def fp4_scale_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """Return the shape of the scales of an fp4 weight whose dense shape is `shape` [out, in]."""
    return shape[0], -(-shape[1] // FP4_GROUP)


def dequantise_fp8(weight: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write the numbers of an fp8 block weight to `out`, in place.

    weight  [out, in] float8_e4m3fn; neither size need be a multiple of 128
    scale   [ceil(out/128), ceil(in/128)] float8_e8m0fnu, or float32
    out     [out, in], any floating dtype, layout or device
    """
    rows, columns = weight.shape
    numbers = scale.to(torch.float32)
    slab = max(1, _SLAB_NUMBERS // (columns * FP8_BLOCK)) * FP8_BLOCK
    for first in range(0, rows, slab):
        part = weight[first : first + slab].to(torch.float32)
        blocks = numbers[first // FP8_BLOCK : (first + slab) // FP8_BLOCK]
        by_column = blocks.repeat_interleave(FP8_BLOCK, dim=1)[:, :columns]
        part *= by_column.repeat_interleave(FP8_BLOCK, dim=0)[: part.shape[0]]
        out[first : first + slab].copy_(part)


def dequantise_fp4(packed: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write the numbers of an fp4 weight to `out`, in place.

    packed  [out, in/2] int8 (or any one-byte dtype), two codes a byte
    scale   [out, ceil(in/32)] float8_e8m0fnu, or float32
    out     [out, in], any floating dtype, layout or device
    """
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    numbers = scale.to(torch.float32)
    pairs = _pair_table().to(packed.device)
    slab = max(1, _SLAB_NUMBERS // columns)
    for first in range(0, rows, slab):
        codes = packed[first : first + slab].view(torch.uint8)
        part = pairs[codes.to(torch.int32)].flatten(1)
        by_group = numbers[first : first + slab].repeat_interleave(FP4_GROUP, dim=1)
        part *= by_group[:, :columns]
        out[first : first + slab].copy_(part)


def quantise_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fp8 block form of `weight`: e4m3 [out, in] and its e8m0 scales.

    weight  [out, in], any floating dtype, finite
    The scale is the least power of two that brings a block's largest number within 448.
    """
    rows, columns = weight.shape
    padding = (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK)
    down, across = fp8_scale_shape((rows, columns))
    padded = F.pad(weight.to(torch.float32), padding)
    blocks = padded.reshape(down, FP8_BLOCK, across, FP8_BLOCK)
    exponent = _scale_exponent(blocks.abs().amax((1, 3)), FP8_MAX)
    scaled = torch.ldexp(blocks, -exponent[:, None, :, None])
    dense = scaled.flatten(2).flatten(0, 1)[:rows, :columns]
    return dense.to(torch.float8_e4m3fn).contiguous(), _e8m0(exponent)


def quantise_fp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fp4 form of `weight`: int8 [out, in/2] and its e8m0 scales [out, ceil(in/32)].

    weight  [out, in], any floating dtype, finite; `in` is even
    Codes round to the nearest number, ties to the even code.
    """
    columns = weight.shape[1]
    padded = F.pad(weight.to(torch.float32), (0, -columns % FP4_GROUP))
    groups = padded.reshape(len(weight), -1, FP4_GROUP)
    exponent = _scale_exponent(groups.abs().amax(-1), FP4_MAX)
    scaled = torch.ldexp(groups, -exponent[..., None]).flatten(-2)[:, :columns]
    boundaries = _code_boundaries().to(weight.device)
    codes = torch.bucketize(scaled.abs(), boundaries, out_int32=True)
    codes = torch.where((scaled < 0) & (codes > 0), codes + 8, codes).to(torch.uint8)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return packed.view(torch.int8).contiguous(), _e8m0(exponent)


def _pair_table() -> Tensor:
    """[256, 2] float32: the two numbers that a byte of codes stands for."""
    values = torch.tensor([*FP4_VALUES, *(-value for value in FP4_VALUES)])
    byte = torch.arange(256)
    return torch.stack([values[byte & 15], values[byte >> 4]], dim=1)


def _code_boundaries() -> Tensor:
    """[7] float32: the greatest magnitude that still rounds to each code but the last."""
    values = torch.tensor(FP4_VALUES)
    middle = (values[:-1] + values[1:]) / 2
    # A tie belongs to the even one of the two codes, so half of the boundaries exclude it.
    below = torch.nextafter(middle, torch.zeros(()))
    return torch.where(torch.arange(7) % 2 == 0, middle, below)


def _scale_exponent(amax: Tensor, largest: float) -> Tensor:
    """Return ceil(log2(amax / largest)) as int32, exactly; 0 where amax is 0."""
    mantissa, exponent = torch.frexp(amax / largest)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    # 2^-127 is denormal, and a device may flush it to zero.
    return torch.where(amax > 0, exponent, torch.zeros_like(exponent)).clamp(-126, 127)


def _e8m0(exponent: Tensor) -> Tensor:
    biased = (exponent + _E8M0_BIAS).to(torch.uint8)
    return biased.contiguous().view(torch.float8_e8m0fnu)


def are_finite(scales: Tensor) -> bool:
    """Return whether no scale is NaN or infinite, in this thread alone: others load, too.

    scales  on the CPU, e8m0 or floating-point numbers
    """
    if scales.dtype is torch.float8_e8m0fnu:
        return int(scales.view(torch.uint8).numpy().max(initial=0)) < _E8M0_NAN
    return bool(np.isfinite(scales.to(torch.float32).numpy()).all())
