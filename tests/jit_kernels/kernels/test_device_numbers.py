"""Numbers of few bits as kernels make them, against torch's own conversions, to the bit."""

import pytest
import torch
import triton
import triton.language as tl

from jit_kernels.device_numbers import e4m3_codes, narrow, power_of_two, scale_exponent
from jit_kernels.kv_records.reference import quantise_e4m3
from tests.testing.compare import assert_same_bits

_COUNT = 1024


@triton.jit
def _codes_kernel(x_ptr: torch.Tensor, out_ptr: torch.Tensor, COUNT: tl.constexpr) -> None:
    at = tl.arange(0, COUNT)
    tl.store(out_ptr + at, e4m3_codes(tl.load(x_ptr + at)))


@triton.jit
def _narrow_kernel(x_ptr: torch.Tensor, out_ptr: torch.Tensor, COUNT: tl.constexpr) -> None:
    at = tl.arange(0, COUNT)
    tl.store(out_ptr + at, narrow(tl.load(x_ptr + at), tl.bfloat16))


@triton.jit
def _scale_kernel(
    x_ptr: torch.Tensor, out_ptr: torch.Tensor, power_ptr: torch.Tensor, COUNT: tl.constexpr
) -> None:
    at = tl.arange(0, COUNT)
    exponent = scale_exponent(tl.load(x_ptr + at))
    tl.store(out_ptr + at, exponent)
    tl.store(power_ptr + at, power_of_two(exponent))


def numbers(seed: int) -> torch.Tensor:
    """Return [1024] float32 of all sizes, with halves between neighbours, zeros and NaN."""
    torch.manual_seed(seed)
    x = torch.randn(_COUNT) * torch.exp2(torch.randint(-12, 8, (_COUNT,)).float())
    every = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    x[:126] = (every[:-1] + every[1:]) / 2
    x[126:252] = -every[:-1]
    x[252:255] = torch.tensor([0.0, -0.0, float("nan")])
    return x.clamp(-448.0, 448.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_e4m3_codes_are_those_of_torch(seed: int) -> None:
    x = numbers(seed)
    got = torch.zeros(_COUNT, dtype=torch.uint8)

    _codes_kernel[(1,)](x, got, COUNT=_COUNT)

    want = x.to(torch.float8_e4m3fn).view(torch.uint8)
    number = ~x.isnan()
    assert_same_bits(got[number], want[number], what="codes")
    assert bool(((got[~number] & 0x7F) == 0x7F).all())


@pytest.mark.parametrize("seed", [0, 1])
def test_narrow_numbers_are_rounded_to_the_nearest_even(seed: int) -> None:
    x = numbers(seed)
    got = torch.zeros(_COUNT, dtype=torch.bfloat16)

    _narrow_kernel[(1,)](x, got, COUNT=_COUNT)

    number = ~x.isnan()
    assert_same_bits(got[number], x.to(torch.bfloat16)[number], what="bfloat16")
    assert bool(got[~number].isnan().all())


@pytest.mark.parametrize("seed", [0, 1])
def test_scales_are_those_of_the_records(seed: int) -> None:
    x = numbers(seed).nan_to_num().abs()
    exponents = torch.zeros(_COUNT, dtype=torch.int32)
    powers = torch.zeros(_COUNT)

    _scale_kernel[(1,)](x, exponents, powers, COUNT=_COUNT)

    want = quantise_e4m3(x.unsqueeze(1))[1]
    assert_same_bits(exponents, want.to(torch.int32), what="exponents")
    assert_same_bits(powers, torch.exp2(want.float() - 127.0), what="powers")
