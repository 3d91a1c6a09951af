"""Rows of bytes in pages whose data and scale parts lie apart."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.paged_rows import PageLayout, gather_rows, store_rows
from tests.testing.compare import assert_same_bits

LAYOUTS = [
    PageLayout(page_rows=64, data_bytes=576, scale_bytes=8, page_bytes=37440),
    PageLayout(page_rows=2, data_bytes=576, scale_bytes=8, page_bytes=1728),
    PageLayout(page_rows=64, data_bytes=128, scale_bytes=4, page_bytes=8448),
    PageLayout(page_rows=5, data_bytes=12, scale_bytes=0, page_bytes=60),
    PageLayout(page_rows=3, data_bytes=7, scale_bytes=0, page_bytes=28),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_rows_are_stored_where_the_layout_says(layout: PageLayout, count: int) -> None:
    pages = torch.full((4, layout.page_bytes), 255, dtype=torch.uint8)
    slots = torch.randperm(3 * layout.page_rows)[:count] + layout.page_rows
    rows = torch.randint(255, (count, layout.row_bytes), dtype=torch.uint8)

    store_rows(pages, slots, rows, layout)

    want = torch.full((4, layout.page_bytes), 255, dtype=torch.uint8)
    data, scale = layout.data_bytes, layout.scale_bytes
    for slot, row in zip(slots.tolist(), rows, strict=True):
        page, at = divmod(slot, layout.page_rows)
        want[page, at * data : (at + 1) * data] = row[:data]
        scales = layout.page_rows * data + at * scale
        want[page, scales : scales + scale] = row[data:]
    assert_same_bits(pages, want)
    assert_same_bits(gather_rows(pages, slots, layout), rows)


def test_parts_that_do_not_tile_the_page_are_refused() -> None:
    with pytest.raises(ValueError, match="do not tile"):
        PageLayout(page_rows=64, data_bytes=576, scale_bytes=8, page_bytes=37376)
    with pytest.raises(ValueError, match="do not tile"):
        PageLayout(page_rows=64, data_bytes=576, scale_bytes=8, page_bytes=36864)


def test_rows_of_another_size_are_refused() -> None:
    pages = torch.zeros(2, 60, dtype=torch.uint8)
    with pytest.raises(ShapeError, match="rows has shape"):
        store_rows(pages, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 11), LAYOUTS[3])


def test_slots_of_pages_that_are_not_there_are_an_error_and_nothing_is_written() -> None:
    layout = LAYOUTS[0]
    pages = torch.zeros((2, layout.page_bytes), dtype=torch.uint8)
    slots = torch.tensor([1, 2 * layout.page_rows])

    with pytest.raises(IndexError):
        gather_rows(pages, slots, layout)
    with pytest.raises(IndexError):
        store_rows(pages, slots, torch.ones((2, layout.row_bytes), dtype=torch.uint8), layout)
    assert not pages.any()
