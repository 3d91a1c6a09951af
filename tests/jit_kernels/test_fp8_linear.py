"""Products of fp8 numbers against plain ones in float64."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.fp8_linear import fp8_linear, fp8_linear_grouped
from jit_kernels.quant_fp8 import quantise_rows
from tests.jit_kernels.kernels.fp8_weights import fp8_weight
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent


def numbers(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return rows of codes in float64, block by block."""
    blocks = codes.double().unflatten(-1, (-1, 128))
    return (blocks * scales.double().unsqueeze(-1)).flatten(-2)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(0, 5, 128), (1, 130, 256), (17, 9, 384)])
def test_the_product_is_that_of_the_numbers_the_codes_stand_for(
    rows: int, columns: int, depth: int
) -> None:
    codes, scales = quantise_rows(torch.randn(rows, depth))
    weight, weight_scales = fp8_weight(columns, depth)

    got = fp8_linear(codes, scales, weight, weight_scales, out_dtype=torch.float32)

    by_row = weight_scales[torch.arange(columns) // 128]
    want = numbers(codes, scales) @ numbers(weight, by_row).T
    assert_close(got, want.float(), Bounds(atol=1e-5, rtol=1e-5))
    rounded = fp8_linear(codes, scales, weight, weight_scales)
    assert_same_bits(rounded, got.bfloat16())


def test_groups_are_products_side_by_side() -> None:
    codes, scales = quantise_rows(torch.randn(7, 3 * 256))
    weight, weight_scales = fp8_weight(3, 10, 256)
    codes, scales = codes.view(7, 3, 256), scales.unflatten(1, (3, 2))

    got = fp8_linear_grouped(codes, scales, weight, weight_scales)

    for group in range(3):
        mine = (codes[:, group], scales[:, group], weight[group], weight_scales[group])
        assert_same_bits(got[:, group].contiguous(), fp8_linear(*mine))


def test_a_row_has_the_same_bits_in_any_company() -> None:
    weight, weight_scales = fp8_weight(24, 128)

    def run(x: torch.Tensor) -> torch.Tensor:
        return fp8_linear(*quantise_rows(x), weight, weight_scales, out_dtype=torch.float32)

    assert_rows_independent(run, [torch.randn(40, 128)])


def test_sizes_and_dtypes_that_do_not_fit_are_refused() -> None:
    codes, scales = quantise_rows(torch.randn(2, 256))
    weight, weight_scales = fp8_weight(8, 256)

    with pytest.raises(ShapeError, match="scales has shape"):
        fp8_linear(codes, scales[:, :1], weight, weight_scales)
    with pytest.raises(ShapeError, match=r"codes is torch\.float32"):
        fp8_linear(codes.float(), scales, weight, weight_scales)
    with pytest.raises(ShapeError, match="multiple of 128"):
        fp8_linear(codes, scales, weight[:, :200], weight_scales)
    with pytest.raises(ShapeError, match="the result is to be"):
        fp8_linear(codes, scales, weight, weight_scales, out_dtype=torch.float16)
    with pytest.raises(ShapeError, match="weight_scales has shape"):
        fp8_linear_grouped(codes[:, None], scales[:, None], weight[None], weight_scales)
