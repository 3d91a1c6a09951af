"""Attention's result turned back and rounded by the device."""

import pytest
import torch

from jit_kernels.out_rope_quant import cuda_backend, reference
from tests.testing.compare import assert_same_bits
from tests.testing.compressed_steps import turns

SHAPES = [(0, 2), (1, 3), (257, 64), (3000, 16), (1, 64), (10, 6)]
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("tokens", "heads"), SHAPES)
def test_rows_equal_the_reference(tokens: int, heads: int) -> None:
    out = torch.randn(tokens, heads + 2, 512).bfloat16()[:, :heads] * 30
    rotation = turns(torch.arange(tokens) * 17, 64)

    codes, scales = cuda_backend.out_rope_quant(out, rotation)

    want, want_scales = reference.out_rope_quant(out, rotation)
    assert codes.shape == want.shape
    if tokens:
        assert float((codes.float() != want.float()).float().mean()) < 1e-3
        assert float((scales != want_scales).float().mean()) < 1e-3
    assert scales.stride() == want_scales.stride()


def test_a_token_has_the_same_bits_in_any_company() -> None:
    out, rotation = torch.randn(9, 2, 512).bfloat16(), turns(torch.arange(9) * 17, 64)
    codes, scales = cuda_backend.out_rope_quant(out, rotation)

    for rows in (slice(0, 1), slice(3, 6)):
        part = cuda_backend.out_rope_quant(out[rows], rotation[rows])
        assert_same_bits(part[0].view(torch.uint8), codes[rows].view(torch.uint8))
        assert_same_bits(part[1], scales[rows])
