"""Queries normed and rotated on the device."""

import pytest
import torch

from jit_kernels.q_norm_rope import cuda_backend, reference
from tests.jit_kernels.kernels.test_rope import rotations
from tests.testing.compare import Bounds, assert_close

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("tokens", "heads"), [(257, 64), (1, 3)])
def test_queries_equal_the_reference(tokens: int, heads: int) -> None:
    q, rotation = torch.randn(tokens, heads, 512).bfloat16() * 3, rotations(tokens, 64)

    got = cuda_backend.q_norm_rope(q, rotation, 1e-6, torch.bfloat16)

    want = reference.q_norm_rope(q, rotation, 1e-6, torch.bfloat16)
    # Where the norm falls beside the middle of two numbers a step may be taken twice.
    assert_close(got, want, Bounds(0.03, 2.0**-6))
    assert float((got.float() - want.float()).abs().gt(1e-4).float().mean()) < 1e-2
