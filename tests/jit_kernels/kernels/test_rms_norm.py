"""Norms of rows on the device; sizes that the kernel does not take run anywhere."""

import pytest
import torch

from jit_kernels.rms_norm import cuda_backend, reference
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent

SHAPES = with_large(
    [(1, 1), (3, 63), (5, 2, 129), (0, 7)], [(257, 4096), (33, 7168), (999, 512), (64, 64, 512)]
)
STEP = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("out_dtype", list(STEP))
@pytest.mark.parametrize("shape", SHAPES)
def test_norms_equal_the_reference(
    shape: tuple[int, ...], out_dtype: torch.dtype, weighted: bool
) -> None:
    x = torch.randn(shape).to(torch.bfloat16)
    weight = torch.randn(shape[-1]) if weighted else None

    got = cuda_backend.rms_norm(x, weight, 1e-6, out_dtype)

    want = reference.rms_norm(x, weight, 1e-6, out_dtype)
    assert got.dtype == out_dtype
    assert_close(got, want, Bounds(atol=1e-6, rtol=STEP[out_dtype]))


def test_columns_of_a_wider_product_are_taken_as_they_lie() -> None:
    wide = torch.randn(5, 100)
    x = wide[:, 20:57]

    got = cuda_backend.rms_norm(x, None, 1e-6, torch.float32)

    want = reference.rms_norm(x, None, 1e-6, torch.float32)
    assert_close(got, want, Bounds(atol=1e-6, rtol=1e-5))


def test_a_row_with_nan_is_nan_and_no_other() -> None:
    x = torch.randn(6, 40)
    x[2, 3] = torch.nan

    got = cuda_backend.rms_norm(x, None, 1e-6, torch.float32)

    assert got.isnan().any(1).tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("width", with_large([31], [512, 4096]))
def test_a_row_has_the_same_bits_in_any_company(width: int) -> None:
    weight = torch.randn(width)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return cuda_backend.rms_norm(x, weight, 1e-6, torch.float32)

    assert_rows_independent(norm, [torch.randn(20, width)])
