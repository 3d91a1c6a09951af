"""Rows of e4m3 with power-of-two scales."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.quant_fp8 import norm_quant, quantise_rows, silu_mul_quant
from jit_kernels.rms_norm import rms_norm
from jit_kernels.silu_mul import silu_mul
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")


def numbers(rounded: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return what codes and scales stand for, [T, C]."""
    codes, scales = rounded
    return (codes.float().unflatten(1, (-1, 128)) * scales.unsqueeze(2)).flatten(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_and_scales_are_what_the_format_says(dtype: torch.dtype) -> None:
    x = (torch.randn(5, 384) * torch.logspace(-6, 4, 384)).to(dtype)
    x[4, :128] = 0.0

    codes, scales = quantise_rows(x)

    groups = x.float().unflatten(1, (3, 128))
    floor = groups.abs().amax(2).clamp(min=1e-4)
    assert torch.equal(scales, torch.exp2(torch.ceil(torch.log2(floor / 448))))
    want = (groups / scales.unsqueeze(2)).flatten(1).to(torch.float8_e4m3fn)
    assert_same_bits(codes.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("rows", [1, 4, 6])
def test_scales_lie_in_aligned_columns(rows: int) -> None:
    _, scales = quantise_rows(torch.randn(rows, 256))

    assert scales.shape == (rows, 2)
    assert scales.stride() == (1, -(-rows // 4) * 4)


def test_a_norm_is_rounded_once() -> None:
    x, weight = torch.randn(7, 256).bfloat16(), torch.randn(256)

    for gain in (weight, None):
        got = numbers(norm_quant(x, gain, eps=1e-6))
        want = rms_norm(x, gain, eps=1e-6, out_dtype=torch.float32)
        assert_close(got, want, Bounds(rtol=1 / 15, atol=want.abs().max().item() * 2.0**-16))


def test_a_gate_is_rounded_once() -> None:
    x = torch.randn(7, 512).bfloat16() * 3

    got = numbers(silu_mul_quant(x, limit=2.5))

    want = silu_mul(x, limit=2.5, out_dtype=torch.float32)
    assert_close(got, want, Bounds(rtol=1 / 15, atol=want.abs().max().item() * 2.0**-16))


def test_a_row_has_the_same_bits_in_any_company() -> None:
    weight = torch.randn(128)

    def codes(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.float() for part in norm_quant(x, weight, eps=1e-6)], 1)

    assert_rows_independent(codes, [torch.randn(40, 128)])


def test_channels_that_are_no_whole_groups_are_refused() -> None:
    with pytest.raises(ShapeError, match="x gives 100 channels, expected a multiple of 128"):
        quantise_rows(torch.zeros(1, 100))
    with pytest.raises(ShapeError, match="gate_up gives 64 channels"):
        silu_mul_quant(torch.zeros(1, 128), limit=1.0)
    with pytest.raises(ShapeError, match="weight has shape"):
        norm_quant(torch.zeros(1, 128), torch.zeros(64), eps=1e-6)
