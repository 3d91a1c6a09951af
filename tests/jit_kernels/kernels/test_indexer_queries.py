"""Indexer queries made by the device."""

import pytest
import torch

from jit_kernels.indexer_queries import reference, stream_backend
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.compressed_steps import turns

SHAPES = [(0, 4), (5, 3), (1, 64), (1000, 64), (3000, 5), (77, 33)]
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("tokens", "heads"), SHAPES)
def test_queries_equal_the_reference(tokens: int, heads: int) -> None:
    wide = torch.randn(tokens, heads * 128 + 24).bfloat16() * 5
    q = wide[:, 8 : heads * 128 + 8].view(tokens, heads, 128)
    weights = torch.randn(tokens, 3 + heads)[:, 3:]
    rotation = turns(torch.arange(tokens) * 31, 64)

    codes, folded = stream_backend.indexer_queries(q, weights, rotation)

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


@pytest.mark.parametrize("rows", [slice(0, 1), slice(2, 5)])
def test_a_token_has_the_same_bits_in_any_company(rows: slice) -> None:
    q, weights = torch.randn(5, 8, 128).bfloat16(), torch.randn(5, 8)
    rotation = turns(torch.arange(5) * 31, 64)
    codes, folded = stream_backend.indexer_queries(q, weights, rotation)

    part = stream_backend.indexer_queries(q[rows], weights[rows], rotation[rows])

    assert_same_bits(part[0].view(torch.uint8), codes[rows].view(torch.uint8))
    assert_same_bits(part[1], folded[rows])
