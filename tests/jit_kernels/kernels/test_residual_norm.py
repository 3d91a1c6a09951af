"""Sums and norms of the stream, and gated rows, on the device."""

import math

import pytest
import torch

from jit_kernels.residual_norm import reference, triton_backend
from jit_kernels.silu_mul import reference as silu_reference
from jit_kernels.silu_mul import triton_backend as silu_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

STEP = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7}


@pytest.mark.parametrize("out_dtype", list(STEP))
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("shape", with_large([(3, 40), (0, 8)], [(65, 4096), (3, 5120)]))
def test_sum_and_norm_are_those_of_the_reference(
    shape: tuple[int, int], adds: bool, out_dtype: torch.dtype
) -> None:
    h, y, weight = torch.randn(shape), torch.randn(shape), torch.randn(shape[1])
    streams = [h.clone(), h.clone()]

    got, want = (
        backend.residual_norm(stream, y if adds else None, weight, 1e-6, out_dtype)
        for backend, stream in zip((triton_backend, reference), streams, strict=True)
    )

    assert got.dtype == out_dtype
    assert_close(got, want, Bounds(atol=1e-6, rtol=STEP[out_dtype]))
    assert_same_bits(*streams)


def test_a_row_with_nan_is_nan_and_no_other() -> None:
    h = torch.randn(3, 40)
    h[1, 7] = torch.nan

    got = triton_backend.residual_norm(h, None, torch.ones(40), 1e-6, torch.bfloat16)

    assert got.isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("limit", [math.inf, 1.5])
@pytest.mark.parametrize("shape", with_large([(3, 9)], [(70, 12288)]))
def test_gated_rows_are_those_of_the_reference(shape: tuple[int, int], limit: float) -> None:
    rows, inner = shape
    x = torch.randn(rows, 2 * inner) * 3
    x[0, 0], x[1, inner + 2] = -80.0, torch.nan

    got = silu_backend.silu_mul(x, limit, torch.bfloat16)

    want = silu_reference.silu_mul(x, limit, torch.bfloat16)
    assert_close(got, want, Bounds(atol=1e-6, rtol=2.0**-7))
