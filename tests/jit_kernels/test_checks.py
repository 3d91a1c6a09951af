"""The wording of a refused tensor."""

import pytest
import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape


def test_a_shape_that_fits_passes() -> None:
    check_shape("x", torch.zeros(2, 3), 2, 3)
    check_shape("x", torch.zeros(2, 3), None, 3)


@pytest.mark.parametrize("sizes", [(2, 4), (3, None), (2,), (2, 3, 1)])
def test_another_shape_is_refused_by_name(sizes: tuple[int | None, ...]) -> None:
    with pytest.raises(ShapeError, match=r"^x has shape \[2, 3\], expected"):
        check_shape("x", torch.zeros(2, 3), *sizes)


def test_another_dtype_is_refused_by_name() -> None:
    check_dtype("x", torch.zeros(1), torch.bfloat16, torch.float32)
    with pytest.raises(ShapeError, match=r"x is torch\.float32, expected torch\.int64"):
        check_dtype("x", torch.zeros(1), torch.int64)


def test_what_is_told_by_its_address_lies_in_order() -> None:
    check_dense("x", torch.zeros(2, 3), torch.float32)
    with pytest.raises(ShapeError, match="x is not contiguous"):
        check_dense("x", torch.zeros(2, 3).T, torch.float32)
    with pytest.raises(ShapeError, match=r"^x is torch\.float32"):
        check_dense("x", torch.zeros(2, 3), torch.int64)
