"""Attention's result turned back and rounded by the device."""

from types import ModuleType

import pytest
import torch

from jit_kernels.out_rope_quant import cuda_backend, reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import assert_same_bits
from tests.testing.compressed_steps import turns

SHAPES = with_large(
    [(0, 2, 128, 64), (1, 3, 512, 64), (9, 2, 128, 128), (11, 1, 384, 6)],
    [(257, 64, 512, 64), (3000, 16, 512, 64), (1, 64, 512, 64), (10, 6, 512, 64)],
)
BACKENDS = pytest.mark.parametrize("backend", with_large([triton_backend], [cuda_backend]))


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "heads", "width", "turned"), SHAPES)
def test_rows_equal_the_reference(
    backend: ModuleType, tokens: int, heads: int, width: int, turned: int, dtype: torch.dtype
) -> None:
    out = torch.randn(tokens, heads + 2, width).to(dtype)[:, :heads] * 30
    rotation = turns(torch.arange(tokens) * 17, turned)

    codes, scales = backend.out_rope_quant(out, rotation)

    want, want_scales = reference.out_rope_quant(out, rotation)
    assert codes.shape == want.shape
    if tokens:
        assert float((codes.float() != want.float()).float().mean()) < 1e-3
        assert float((scales != want_scales).float().mean()) < 1e-3
    assert scales.stride() == want_scales.stride()


@BACKENDS
@pytest.mark.parametrize("width", [128, 512])
def test_a_token_has_the_same_bits_in_any_company(backend: ModuleType, width: int) -> None:
    out, rotation = torch.randn(9, 2, width), turns(torch.arange(9) * 17, 64)
    codes, scales = backend.out_rope_quant(out, rotation)

    for rows in (slice(0, 1), slice(3, 6)):
        part = backend.out_rope_quant(out[rows], rotation[rows])
        assert_same_bits(part[0].view(torch.uint8), codes[rows].view(torch.uint8))
        assert_same_bits(part[1], scales[rows])
