"""Matrix products whose rows do not know each other."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.tile_linear import tile_linear, tile_linear_grouped
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(0, 5, 3), (1, 7, 1), (16, 96, 24), (63, 33, 129), (129, 5, 8)]
)
def test_the_product_equals_a_plain_one(rows: int, depth: int, columns: int) -> None:
    x, weight = torch.randn(rows, depth), torch.randn(columns, depth)

    got = tile_linear(x, weight)

    want = (x.double() @ weight.double().T).float()
    assert_close(got, want, Bounds(atol=1e-5, rtol=1e-5))


@pytest.mark.parametrize(
    ("depth", "columns"), [(96, 48), (33, 7), (384, 24), (512, 130), (64, 1), (5, 8)]
)
def test_a_row_has_the_same_bits_in_any_company(depth: int, columns: int) -> None:
    weight = torch.randn(columns, depth)

    assert_rows_independent(lambda x: tile_linear(x, weight), [torch.randn(70, depth)])


def test_bfloat16_is_summed_in_float32_and_rounded_once() -> None:
    x, weight = torch.randn(9, 300).bfloat16(), torch.randn(11, 300).bfloat16()
    exact = x.double() @ weight.double().T

    assert tile_linear(x, weight).dtype == torch.bfloat16
    wide = tile_linear(x, weight, out_dtype=torch.float32)
    assert_close(wide, exact.float(), Bounds(atol=1e-4))
    assert_same_bits(tile_linear(x, weight), wide.bfloat16())


@pytest.mark.parametrize("rows", [0, 1, 5, 16, 17, 40])
def test_groups_are_products_side_by_side(rows: int) -> None:
    x, weight = torch.randn(rows, 3, 26), torch.randn(3, 10, 26)

    got = tile_linear_grouped(x, weight)

    want = torch.cat([tile_linear(x[:, g].contiguous(), weight[g]) for g in range(3)], 1)
    assert_same_bits(got, want)


def test_a_weight_of_another_depth_is_refused() -> None:
    with pytest.raises(ShapeError, match="x has shape"):
        tile_linear(torch.zeros(2, 5), torch.zeros(3, 4))
