"""Indexer queries made by the device."""

from types import ModuleType

import pytest
import torch

from jit_kernels.indexer_queries import reference, stream_backend, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.compressed_steps import turns

SHAPES = with_large(
    [(0, 4, 32, 8), (5, 3, 128, 64), (1, 64, 64, 64), (3, 33, 32, 2)],
    [(1000, 64, 128, 64), (3000, 5, 128, 64), (77, 33, 128, 64)],
)
BACKENDS = pytest.mark.parametrize("backend", with_large([triton_backend], [stream_backend]))


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "heads", "width", "turned"), SHAPES)
def test_queries_equal_the_reference(
    backend: ModuleType, tokens: int, heads: int, width: int, turned: int, dtype: torch.dtype
) -> None:
    wide = torch.randn(tokens, heads * width + 24).to(dtype) * 5
    q = wide[:, 8 : heads * width + 8].view(tokens, heads, width)
    weights = torch.randn(tokens, 3 + heads).to(dtype)[:, 3:]
    rotation = turns(torch.arange(tokens) * 31, turned)

    codes, folded = backend.indexer_queries(q, weights, rotation)

    want, goal = reference.indexer_queries(q, weights, rotation)
    assert not bool(codes.float().isnan().any())
    assert codes.shape == want.shape
    if tokens:
        # Where a number falls beside the middle of two codes it may round the other way.
        assert float((codes.float() != want.float()).float().mean()) < 3e-3
    # The scale doubles where a head's greatest number passes 448 times a power of two: sums that
    # differ in their last bits may take the one and the other, seldom.
    beside = torch.stack((folded, folded * 2, folded / 2))
    nearest = beside.gather(0, (beside - goal).abs().argmin(0, keepdim=True))[0]
    assert_close(nearest, goal, Bounds(atol=1e-7, rtol=1e-5))
    assert int((nearest != folded).sum()) <= folded.numel() // 1000


@BACKENDS
@pytest.mark.parametrize("rows", [slice(0, 1), slice(2, 5)])
@pytest.mark.parametrize("width", [64, 128])
def test_a_token_has_the_same_bits_in_any_company(
    backend: ModuleType, width: int, rows: slice
) -> None:
    q, weights = torch.randn(5, 8, width), torch.randn(5, 8)
    rotation = turns(torch.arange(5) * 31, width // 2)
    codes, folded = backend.indexer_queries(q, weights, rotation)

    part = backend.indexer_queries(q[rows], weights[rows], rotation[rows])

    assert_same_bits(part[0].view(torch.uint8), codes[rows].view(torch.uint8))
    assert_same_bits(part[1], folded[rows])
