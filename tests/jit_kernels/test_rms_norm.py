"""Root-mean-square normalisation."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.rms_norm import rms_norm
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (5, 2, 129)])
def test_the_norm_equals_the_formula(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[-1])

    got = rms_norm(x, weight, eps=1e-3)

    wide = x.double()
    want = wide / (wide.pow(2).sum(-1, keepdim=True) / shape[-1] + 1e-3).sqrt() * weight
    assert_close(got, want.float(), Bounds(atol=1e-6, rtol=1e-5))


def test_without_a_weight_rows_have_unit_mean_square() -> None:
    got = rms_norm(torch.randn(7, 33) * 50, None, eps=1e-6)

    assert_close(got.square().mean(-1), torch.ones(7), Bounds(atol=1e-5))


def test_bfloat16_is_normed_in_float32_and_rounded_once() -> None:
    x, weight = torch.randn(4, 40).bfloat16(), torch.randn(40)

    wide = rms_norm(x, weight, eps=1e-6, out_dtype=torch.float32)

    assert_same_bits(rms_norm(x, weight, eps=1e-6), wide.bfloat16())
    assert_same_bits(wide, rms_norm(x.float(), weight, eps=1e-6))


@pytest.mark.parametrize("width", [1, 31, 96, 512])
def test_a_row_has_the_same_bits_in_any_company(width: int) -> None:
    weight = torch.randn(width)

    assert_rows_independent(lambda x: rms_norm(x, weight, eps=1e-6), [torch.randn(40, width)])


def test_the_input_is_left_alone() -> None:
    x = torch.randn(3, 8)
    before = x.clone()

    rms_norm(x, torch.ones(8), eps=1e-6)

    assert_same_bits(x, before)


def test_a_weight_of_another_width_is_refused() -> None:
    with pytest.raises(ShapeError, match="weight has shape"):
        rms_norm(torch.zeros(2, 5), torch.zeros(4), eps=1e-6)
