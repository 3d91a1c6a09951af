"""Clamped SwiGLU on the device."""

import pytest
import torch

from jit_kernels.silu_mul import reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close

SHAPES = with_large([(1, 1), (7, 63), (2, 1030)], [(257, 2048), (1000, 3072)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "inner"), SHAPES)
def test_the_gate_equals_the_reference(rows: int, inner: int, dtype: torch.dtype) -> None:
    x = (torch.randn(rows, 2 * inner) * 5).to(dtype)

    got = triton_backend.silu_mul(x, 2.5, dtype)

    step = 1e-5 if dtype == torch.float32 else 2.0**-7
    assert_close(got, reference.silu_mul(x, 2.5, dtype), Bounds(atol=1e-6, rtol=step))


def test_nan_is_kept_and_stays_in_its_place() -> None:
    x = torch.randn(3, 20)
    x[1, 4], x[2, 13] = torch.nan, torch.nan

    got = triton_backend.silu_mul(x, 2.5, torch.float32)

    assert got.isnan().nonzero().tolist() == [[1, 4], [2, 3]]


def test_a_gate_far_below_zero_gives_zero() -> None:
    got = triton_backend.silu_mul(torch.tensor([[-80.0, 3.0]]), 10.0, torch.float32)

    assert_close(got, torch.zeros(1, 1), Bounds(atol=1e-30))
