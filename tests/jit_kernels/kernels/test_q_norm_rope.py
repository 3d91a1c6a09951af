"""Queries normed and rotated on the device."""

from types import ModuleType

import pytest
import torch

from jit_kernels.q_norm_rope import cuda_backend, reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.jit_kernels.kernels.test_rope import rotations
from tests.testing.compare import Bounds, assert_close

SHAPES = with_large(
    [(1, 1, 2, 2), (5, 3, 22, 6), (9, 2, 96, 64)], [(257, 64, 512, 64), (1, 3, 512, 64)]
)
BACKENDS = pytest.mark.parametrize("backend", with_large([triton_backend], [cuda_backend]))


@BACKENDS
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "heads", "width", "turned"), SHAPES)
def test_queries_equal_the_reference(
    backend: ModuleType,
    tokens: int,
    heads: int,
    width: int,
    turned: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
) -> None:
    q, rotation = torch.randn(tokens, heads, width).to(dtype) * 3, rotations(tokens, turned)

    got = backend.q_norm_rope(q, rotation, 1e-6, out_dtype)

    want = reference.q_norm_rope(q, rotation, 1e-6, out_dtype)
    # Where the norm falls beside the middle of two numbers a step may be taken twice.
    bounds = Bounds(2e-5, 1e-5) if out_dtype == torch.float32 else Bounds(0.03, 2.0**-6)
    assert_close(got, want, bounds)
    assert float((got.float() - want.float()).abs().gt(1e-4).float().mean()) < 1e-2
