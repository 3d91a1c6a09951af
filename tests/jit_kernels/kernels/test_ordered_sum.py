"""Ordered sums in Triton: the very bits of the reference."""

import pytest
import torch

from jit_kernels.ordered_sum import reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import assert_same_bits

SHAPES = with_large([(1, 7), (2, 2048), (4, 2049), (8, 3, 5), (2, 0, 4)], [(2, 4096, 4096)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_those_of_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    parts = torch.randn(shape).mul(1e3).to(dtype)
    want, got = torch.empty_like(parts[0]), torch.empty_like(parts[0])

    reference.ordered_sum(parts, want)
    triton_backend.ordered_sum(parts, got)

    assert_same_bits(got, want)
