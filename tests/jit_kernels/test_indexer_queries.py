"""Indexer queries, rotated, transformed and rounded at once."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.indexer_keys import hadamard, quantise_queries
from jit_kernels.indexer_queries import indexer_queries
from jit_kernels.rope import rope
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.compressed_steps import turns

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize(("heads", "padded"), [(3, 32), (32, 32), (33, 64), (64, 64)])
def test_queries_and_weights_are_those_of_the_single_steps(heads: int, padded: int) -> None:
    q, weights = torch.randn(4, heads, 32), torch.randn(4, heads)
    rotation, before = turns(torch.arange(4) * 7, 8), q.clone()

    codes, folded = indexer_queries(q, weights, rotation)

    values, scales = quantise_queries(hadamard(rope(q.clone(), rotation)))
    assert codes.shape == (4, padded, 32)
    got = codes[:, :heads].float()
    assert float((got != values).float().mean()) < 2e-3
    want = weights * scales * (heads * 32) ** -0.5
    assert_close(folded[:, :heads], want, Bounds(rtol=1e-6))
    assert not bool(codes[:, heads:].float().any())
    assert not bool(folded[:, heads:].any())
    assert_same_bits(q, before)


def test_products_are_those_of_queries_as_they_were() -> None:
    """What is rounded away is small, and the transform changes no product."""
    q, keys, rotation = torch.randn(2, 8, 128), torch.randn(5, 128), turns(torch.arange(2), 64)

    codes, folded = indexer_queries(q, torch.ones(2, 8), rotation)

    scale = folded[:, :8] * (8 * 128) ** 0.5
    got = (codes[:, :8].float() * scale.unsqueeze(2)) @ hadamard(keys).T
    want = rope(q.clone(), rotation) @ keys.T
    assert_close(got, want, Bounds(atol=2.0, cosine=0.998))


def test_other_widths_and_too_many_heads_are_refused() -> None:
    rotation = torch.zeros(1, 2, 8)
    with pytest.raises(ShapeError, match="at most 64"):
        indexer_queries(torch.zeros(1, 65, 32), torch.zeros(1, 65), rotation)
    with pytest.raises(ShapeError, match="of 48 channels"):
        indexer_queries(torch.zeros(1, 4, 48), torch.zeros(1, 4), rotation)
    spread = torch.zeros(1, 4, 64)[:, :, ::2]
    with pytest.raises(ShapeError, match="side by side"):
        indexer_queries(spread, torch.zeros(1, 4), rotation)
