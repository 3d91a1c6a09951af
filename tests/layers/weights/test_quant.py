"""fp8 block weights and fp4 experts, both ways."""

import math

import pytest
import torch
from torch import Tensor

from layers.weights.quant import (
    FP4_VALUES,
    are_finite,
    dequantise_fp4,
    dequantise_fp8,
    fp4_scale_shape,
    fp8_scale_shape,
    quantise_fp4,
    quantise_fp8,
)
from tests.testing.compare import assert_same_bits

SHAPES = [(1, 2), (3, 130), (128, 128), (129, 255), (300, 640)]


def _e8m0(exponents: list[list[int]]) -> Tensor:
    return (torch.tensor(exponents) + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def _by_hand_fp8(weight: Tensor, scale: Tensor) -> Tensor:
    """One number at a time, from the bytes: sign, 4 bits of exponent, 3 of mantissa."""
    out = torch.empty(weight.shape, dtype=torch.float64)
    for row, line in enumerate(weight.view(torch.uint8).tolist()):
        for column, byte in enumerate(line):
            exponent, mantissa = byte >> 3 & 15, byte & 7
            value = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
            power = int(scale.view(torch.uint8)[row // 128, column // 128]) - 127
            out[row, column] = math.ldexp(-value if byte & 128 else value, power)
    return out


@pytest.mark.parametrize("shape", [(1, 2), (3, 130), (129, 5)])
def test_fp8_blocks_mean_what_their_bits_say(shape: tuple[int, int]) -> None:
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    codes[codes & 127 == 127] = 0  # NaN
    weight = codes.view(torch.float8_e4m3fn)
    powers = torch.randint(-20, 20, fp8_scale_shape(shape)).tolist()
    out = torch.full(shape, math.nan)

    dequantise_fp8(weight, _e8m0(powers), out)

    assert torch.equal(out.double(), _by_hand_fp8(weight, _e8m0(powers)))


def test_a_float32_scale_serves_too() -> None:
    weight = torch.ones(2, 200).to(torch.float8_e4m3fn)
    out = torch.empty(2, 200)

    dequantise_fp8(weight, torch.tensor([[0.3, 0.7]]), out)

    assert torch.equal(out[0], torch.tensor([0.3] * 128 + [0.7] * 72))


def test_the_even_column_is_the_low_nibble() -> None:
    packed = torch.tensor([[0x71, 0x9F - 256]], dtype=torch.int16).to(torch.int8)
    out = torch.empty(1, 4)

    dequantise_fp4(packed, _e8m0([[1]]), out)

    assert out.tolist() == [[1.0, 12.0, -12.0, -1.0]]


def test_every_fp4_code_and_every_group_has_its_value() -> None:
    codes = torch.arange(16).repeat(1, 4)  # 64 columns: two groups
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    out = torch.empty(1, 64)

    dequantise_fp4(packed, _e8m0([[-2, 3]]), out)

    values = torch.tensor([*FP4_VALUES, *(-value for value in FP4_VALUES)])
    want = torch.cat([values.repeat(2) / 4, values.repeat(2) * 8])
    assert torch.equal(out[0], want)


@pytest.mark.parametrize("slab", [1, 700, 1 << 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_neither_slabs_nor_a_strided_target_change_a_bit(
    slab: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(300, 192)
    for quantise, dequantise in (
        (quantise_fp8, dequantise_fp8),
        (quantise_fp4, dequantise_fp4),
    ):
        codes, scale = quantise(weight)
        plain = torch.empty(300, 192)
        monkeypatch.undo()
        dequantise(codes, scale, plain)
        strided = torch.empty(192, 600, dtype=dtype).T[::2]
        monkeypatch.setattr("layers.weights.quant._SLAB_NUMBERS", slab)

        dequantise(codes, scale, strided)

        assert_same_bits(strided.contiguous(), plain.to(dtype))


@pytest.mark.parametrize("shape", SHAPES)
def test_fp8_loses_less_than_a_sixteenth(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape)
    codes, scale = quantise_fp8(weight)
    out = torch.empty(shape)

    dequantise_fp8(codes, scale, out)

    assert tuple(scale.shape) == fp8_scale_shape(shape)
    assert codes.to(torch.float32).abs().max() > 224  # the scale is the least that fits
    assert ((out - weight).abs() <= weight.abs() / 16 + scale.to(torch.float32).max() / 512).all()


@pytest.mark.parametrize("shape", SHAPES[::2])
def test_fp4_takes_the_nearest_value(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape)
    codes, scale = quantise_fp4(weight)
    out = torch.empty(shape)

    dequantise_fp4(codes, scale, out)

    assert tuple(scale.shape) == fp4_scale_shape(shape)
    spread = scale.to(torch.float32).repeat_interleave(32, 1)[:, : shape[1]]
    values = torch.tensor(FP4_VALUES)
    distance = (weight.abs()[..., None] - spread[..., None] * values).abs().amin(-1)
    torch.testing.assert_close((out - weight).abs(), distance, rtol=0, atol=1e-6)


@pytest.mark.parametrize("quantise", [quantise_fp8, quantise_fp4])
def test_quantising_again_changes_nothing(quantise: object) -> None:
    pairs = {quantise_fp8: dequantise_fp8, quantise_fp4: dequantise_fp4}
    once, dequantise = next((q, d) for q, d in pairs.items() if q is quantise)
    codes, scale = once(torch.randn(130, 192))
    numbers = torch.empty(130, 192)
    dequantise(codes, scale, numbers)

    again_codes, again_scale = once(numbers)

    again = torch.empty(130, 192)
    dequantise(again_codes, again_scale, again)
    assert torch.equal(again, numbers)


def test_ties_go_to_the_even_code() -> None:
    ties = torch.tensor([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]])
    codes, scale = quantise_fp4(torch.cat([ties, -ties], 1))
    out = torch.empty(1, 16)

    dequantise_fp4(codes, scale, out)

    assert out[0, :8].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]
    assert torch.equal(out[0, 8:].abs(), out[0, :8])


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e38])
def test_blocks_of_zeros_and_of_extremes_stay_finite(size: float) -> None:
    weight = torch.full((2, 64), size)
    for quantise, dequantise in (
        (quantise_fp8, dequantise_fp8),
        (quantise_fp4, dequantise_fp4),
    ):
        out = torch.full((2, 64), math.nan)

        dequantise(*quantise(weight), out)

        torch.testing.assert_close(out, weight, rtol=0.25, atol=1e-36)


@pytest.mark.parametrize(
    ("shape", "fp8", "fp4"), [((1, 1), (1, 1), (1, 1)), ((129, 33), (2, 1), (129, 2))]
)
def test_scale_shapes_round_up(
    shape: tuple[int, int], fp8: tuple[int, int], fp4: tuple[int, int]
) -> None:
    assert (fp8_scale_shape(shape), fp4_scale_shape(shape)) == (fp8, fp4)


@pytest.mark.parametrize("dtype", [torch.float8_e8m0fnu, torch.float32, torch.bfloat16])
def test_scales_are_finite_or_not(dtype: torch.dtype) -> None:
    scales = torch.tensor([[0.5, 2.0, 1.0], [4.0, 2.0**120, 1.0]]).to(dtype)
    assert are_finite(scales)
    assert are_finite(scales[:0])
    scales[1, 2] = torch.nan
    assert not are_finite(scales)
    assert are_finite(scales[:, :2])
