"""Rows of e4m3 on the device, to the bit where the numbers before rounding are given."""

import pytest
import torch

from jit_kernels.quant_fp8 import cuda_backend, reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

SHAPES = with_large([(1, 128), (7, 384), (3, 2176)], [(257, 4096), (33, 7168), (1000, 1536)])
DTYPES = [torch.float32, torch.bfloat16]


def numbers(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows of every size, with zeros, and groups that are all zero."""
    x = torch.randn(rows, width) * torch.logspace(-9, 5, width)
    x[:, ::7] = 0.0
    x[-1, :128] = 0.0
    return x.to(dtype)


def assert_close_codes(
    got: tuple[torch.Tensor, torch.Tensor], want: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Fail unless the numbers differ by one step of e4m3 at most, and seldom at all."""
    scaled = [
        codes.float().unflatten(1, (-1, 128)) * scales.unsqueeze(2) for codes, scales in (got, want)
    ]
    step = want[1].unsqueeze(2) * 2.0**-6
    excess = (scaled[0] - scaled[1]).abs() - torch.maximum(step, scaled[1].abs() / 8)
    assert (excess <= 0).all()
    assert float((got[0].view(torch.uint8) != want[0].view(torch.uint8)).float().mean()) < 2e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_rows_are_rounded_to_the_bits_of_the_reference(
    rows: int, width: int, dtype: torch.dtype
) -> None:
    x = numbers(rows, width, dtype)

    codes, scales = triton_backend.quantise_rows(x)

    want = reference.quantise_rows(x.cpu())
    assert_same_bits(codes.view(torch.uint8).cpu(), want[0].view(torch.uint8), what="codes")
    assert_same_bits(scales.cpu(), want[1], what="scales")
    assert scales.stride(0) == 1
    assert scales.stride(1) % 4 == 0


def test_every_number_of_e4m3_and_every_middle_is_rounded_to_even() -> None:
    exact = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (exact[1:] + exact[:-1]) / 2
    around = torch.cat((exact, middles, middles * (1 + 2**-20), middles * (1 - 2**-20)))
    x = torch.full((1, 1024), 448.0)
    x[0, 1 : 1 + 2 * around.numel()] = torch.cat((around, -around))
    x[0, ::128] = 448.0

    codes, _ = triton_backend.quantise_rows(x)

    assert_same_bits(codes.view(torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_a_maximum_of_448_keeps_its_scale_and_the_next_number_doubles_it() -> None:
    x = torch.zeros(2, 128)
    x[0, 5], x[1, 5] = 448.0, torch.nextafter(torch.tensor(448.0), torch.tensor(500.0))

    _, scales = triton_backend.quantise_rows(x)

    assert scales[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_normed_rows_are_rounded(rows: int, width: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, width).to(dtype), torch.randn(width)

    for gain in (weight, None):
        got = cuda_backend.norm_quant(x, gain, 1e-6)
        assert_close_codes(got, reference.norm_quant(x, gain, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inner"), SHAPES)
def test_gated_rows_are_rounded_in_one_pass(rows: int, inner: int, dtype: torch.dtype) -> None:
    x = (torch.randn(rows, 2 * inner) * 3).to(dtype)

    got = triton_backend.silu_mul_quant(x, 2.5)

    assert_close_codes(got, reference.silu_mul_quant(x, 2.5))


def test_a_gate_keeps_nan_in_its_place_and_gives_zero_far_below_zero() -> None:
    x = torch.randn(4, 512)
    x[1, 4], x[2, 256 + 130] = torch.nan, torch.nan
    x[3, :256] = -80.0

    codes, _ = triton_backend.silu_mul_quant(x, 10.0)

    assert codes.float().isnan().nonzero().tolist() == [[1, 4], [2, 130]]
    assert not codes[3].float().any()


def test_nan_stays_nan() -> None:
    x = torch.randn(2, 256)
    x[1, 130] = torch.nan

    codes, scales = triton_backend.quantise_rows(x)

    assert codes.float().isnan().nonzero().tolist() == [[1, 130]]
    assert_close(scales, reference.quantise_rows(torch.nan_to_num(x))[1], Bounds())
