"""Scores of the tokens of chunks."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.chunk_logits import chunk_logits, gather_key_pages
from jit_kernels.indexer_keys import decode_keys
from jit_kernels.paged_rows import gather_rows
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.indexer_keys import key_layout, some_key_pages, some_queries

pytestmark = pytest.mark.usefixtures("device")


def test_pages_are_copied_in_the_order_they_are_named_in() -> None:
    pages, table = some_key_pages([100, 64], 32)

    named = torch.cat((table[0, :2], table[1, :1], table[0, :1]))

    codes, scales = gather_key_pages(pages, named, key_layout(32))

    slots = (table[0, :2].long().unsqueeze(1) * 64 + torch.arange(64)).flatten()[:100]
    want = decode_keys(gather_rows(pages, slots, key_layout(32)), record_format="fp8")
    assert_same_bits(codes[:100].float() * scales[:100].unsqueeze(1), want)
    assert codes.shape == (256, 32)
    assert scales.shape == (256,)


def test_scores_stand_from_the_first_column_on() -> None:
    (q, weights), (pages, table) = some_queries(4, 32, 32), some_key_pages([120, 70], 32)
    keys = gather_key_pages(pages, table[:, :2].flatten(), key_layout(32))
    start = torch.tensor([0, 0, 128, 128], dtype=torch.int32)
    end = torch.tensor([0, 120, 140, 198], dtype=torch.int32)

    got = chunk_logits(q, weights, keys, start=start, end=end, columns=125)

    numbers = keys[0].float() * keys[1].unsqueeze(1)
    assert got.shape == (4, 125)
    for token, (first, past) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        products = (q[token].float() @ numbers[first:past].T).clamp(min=0)
        want = weights[token] @ products
        near = Bounds(atol=0.05 * float(want.abs().max()) if past > first else 0.0, rtol=1e-3)
        assert_close(got[token, : past - first], want, near, what=f"token {token}")


def test_bounds_of_other_types_are_refused() -> None:
    q, weights = some_queries(1, 32, 32)
    keys = (torch.zeros(64, 32).to(torch.float8_e4m3fn), torch.zeros(64))
    bound = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ShapeError, match=r"start is torch\.int64"):
        chunk_logits(q, weights, keys, start=bound, end=bound, columns=64)
    short = (keys[0], keys[1][:63])
    with pytest.raises(ShapeError, match="scales has shape"):
        chunk_logits(q, weights, short, start=bound.int(), end=bound.int(), columns=64)
