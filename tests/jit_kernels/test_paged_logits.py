"""Scores of decoding rows, keys read from pages."""

from typing import Any

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.indexer_keys import decode_keys
from jit_kernels.indexer_logits import indexer_logits
from jit_kernels.paged_logits import LogitsPlan, paged_logits, row_slices
from jit_kernels.paged_rows import PageLayout, gather_rows
from tests.testing.compare import Bounds, assert_close
from tests.testing.indexer_keys import key_layout, some_key_pages, some_queries

pytestmark = pytest.mark.usefixtures("device")

BLOCKS = [130, 0, 64, 1, 191]


def test_scores_are_those_of_gathered_keys() -> None:
    (q, weights), (pages, table) = some_queries(5, 32, 32), some_key_pages(BLOCKS, 32)
    blocks = torch.tensor(BLOCKS, dtype=torch.int32)

    got = paged_logits(
        *(q, weights, pages, key_layout(32)),
        page_table=table,
        blocks=blocks,
        columns=200,
        plan=LogitsPlan(),
    )

    held = table[:, :4].clamp(max=pages.shape[0] - 1).long()
    slots = (held.unsqueeze(2) * 64 + torch.arange(64)).flatten(1)
    keys = decode_keys(gather_rows(pages, slots.flatten(), key_layout(32)), record_format="fp8")
    want = indexer_logits(
        q.float(), weights, keys.view(5, 256, 32), row=torch.arange(5), visible=blocks.long()
    )
    assert got.shape == (5, 200)
    for row, count in enumerate(BLOCKS):
        near = Bounds(atol=0.05 * float(want[row, :count].abs().max()) if count else 0.0, rtol=1e-3)
        assert_close(got[row, :count], want[row, :count], near, what=f"row {row}")


def test_slices_cover_all_rows_within_the_bytes() -> None:
    whole = list(row_slices(10, 250_000, workspace_bytes=4 << 20))

    assert [(part.start, part.stop) for part in whole] == [(0, 4), (4, 8), (8, 10)]
    assert [part.stop for part in row_slices(2, 10**9, workspace_bytes=1)] == [1, 2]
    assert [part.stop for part in row_slices(7, 0, workspace_bytes=1 << 20)] == [7]
    assert not list(row_slices(0, 64, workspace_bytes=1))


def test_pages_that_hold_something_else_are_refused() -> None:
    q, weights = some_queries(1, 32, 32)
    table, blocks = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    where: dict[str, Any] = {"page_table": table, "blocks": blocks}
    odd = PageLayout(32, 32, 4, 32 * 36)
    pages = torch.zeros(1, odd.page_bytes, dtype=torch.uint8)
    with pytest.raises(ShapeError, match="64 keys of 32"):
        paged_logits(q, weights, pages, odd, **where, columns=32)
    pages = torch.zeros(1, 64 * 36, dtype=torch.uint8)
    with pytest.raises(ShapeError, match="do not hold 65"):
        paged_logits(q, weights, pages, key_layout(32), **where, columns=65)
    with pytest.raises(ShapeError, match="8 heads"):
        paged_logits(q[:, :8], weights[:, :8], pages, key_layout(32), **where, columns=1)
