"""Indexer keys and queries whose first channels turn, on the device."""

from typing import Any

import pytest
import torch
from torch import Tensor

from jit_kernels.indexer_keys.reference import decode_keys
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_rows.reference import gather_rows
from jit_kernels.sparse_index import reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.jit_kernels.kernels.test_latent_heads import rotation
from tests.testing.compare import Bounds, assert_close, assert_same_bits

# channels, turned ones, heads; halves turn
GEOMETRIES = with_large([(32, 16, 3, True), (64, 8, 33, False)], [(128, 64, 64, True)])
TOKENS = with_large([5], [1, 16, 17, 300])


class Case:
    """Random keys and queries of tokens."""

    def __init__(self, tokens: int, geometry: tuple[int, int, int, bool]) -> None:
        self.width, turned, heads, self.halves = geometry
        self.keys, self.weights = torch.randn(tokens, self.width), torch.randn(tokens, heads)
        self.q = torch.randn(tokens, heads, self.width)
        self.rotation = rotation(tokens, turned, halves=self.halves)
        self.layout = PageLayout(64, self.width, 4, 64 * (self.width + 4))
        self.slots = torch.randperm(256)[:tokens] if tokens < 256 else torch.arange(tokens)

    def stored(self, backend: Any, some: slice) -> Tensor:
        """Return pages with the keys of some tokens, of which all other bytes are 7."""
        pages = torch.full((8, self.layout.page_bytes), 7, dtype=torch.uint8)
        turn = self.rotation[some].contiguous()
        keys, slots = self.keys[some].contiguous(), self.slots[some].contiguous()
        backend.store_index_keys(pages, slots, keys, turn, self.layout, self.halves)
        return pages

    def queries(self, backend: Any, some: slice) -> tuple[Tensor, Tensor]:
        """Return codes and folded weights of some tokens."""
        turn, q = self.rotation[some].contiguous(), self.q[some].contiguous()
        codes, folded = backend.index_queries(q, self.weights[some], turn, self.halves)
        return codes.float(), folded


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_keys_and_queries_are_those_of_the_reference(
    geometry: tuple[int, int, int, bool], tokens: int
) -> None:
    made, every = Case(tokens, geometry), slice(0, tokens)

    pages, want_pages = (made.stored(one, every) for one in (triton_backend, reference))
    (codes, folded), (want, want_folded) = (
        made.queries(one, every) for one in (triton_backend, reference)
    )

    # A number on the border between two codes may fall to either, and a scale with it.
    assert float((pages != want_pages).float().mean()) < 2e-3
    keys, want_keys = (
        decode_keys(gather_rows(some, made.slots, made.layout), "fp8")
        for some in (pages, want_pages)
    )
    assert_close(keys, want_keys, Bounds(atol=1e-2, rtol=2.0**-3, cosine=0.9999))
    assert codes.shape == want.shape
    assert float((codes != want).float().mean()) < 2e-3
    numbers, want_numbers = codes * folded.unsqueeze(2), want * want_folded.unsqueeze(2)
    assert_close(numbers, want_numbers, Bounds(atol=1e-2, rtol=2.0**-3, cosine=0.9999))


def test_a_token_has_the_same_bits_in_any_company() -> None:
    made = Case(18, (32, 16, 3, True))

    alone, beside = (made.queries(triton_backend, some) for some in (slice(17, 18), slice(0, 18)))

    for one, other in zip(alone, beside, strict=True):
        assert_same_bits(one, other[17:18])
    pages = [made.stored(triton_backend, some) for some in (slice(17, 18), slice(0, 18))]
    assert_same_bits(*(gather_rows(some, made.slots[17:18], made.layout) for some in pages))
