"""Heads that are added to queries are zeros, and sinks of theirs."""

import pytest
import torch
import torch.nn.functional as F

from jit_kernels.paged_attention.triton_heads import pad_heads
from tests.testing.compare import assert_same_bits


@pytest.mark.parametrize(
    ("tokens", "heads", "wanted"), [(3, 32, 64), (1, 16, 64), (2, 63, 64), (2, 100, 128)]
)
def test_queries_get_heads_of_zeros(tokens: int, heads: int, wanted: int) -> None:
    q, sink = torch.randn(tokens, 2 * heads, 48).bfloat16()[:, ::2], torch.randn(heads)

    got, sinks = pad_heads(q, sink)

    assert_same_bits(got, F.pad(q, (0, 0, 0, wanted - heads)))
    assert_same_bits(sinks, F.pad(sink, (0, wanted - heads)))


@pytest.mark.parametrize("heads", [64, 128])
def test_queries_of_enough_heads_are_left_as_they_are(heads: int) -> None:
    q, sink = torch.randn(2, heads, 48).bfloat16(), torch.randn(heads)

    assert pad_heads(q, sink)[0] is q
