"""Rows are claimed once, and all zeros when nobody has them."""

import pytest

from mem_cache.errors import IntegrityError, OutOfPages
from mem_cache.request_table import RequestTable
from mem_cache.spec import TreeSpec


def _table() -> RequestTable:
    return RequestTable(TreeSpec(page_size=4, swa_page_size=2, window=4), rows=3, max_pages=5)


def test_arrays_have_the_shapes_that_the_device_expects() -> None:
    table = _table()

    assert (table.page_table.shape, table.page_table.dtype) == ((3, 5), "int32")
    assert (table.window.shape, table.window.dtype) == ((3, 2), "int32")
    assert (table.ring.shape, table.ring.dtype) == ((3,), "int32")
    assert (table.length.shape, table.length.dtype) == ((3,), "int64")


def test_every_row_is_claimed_once() -> None:
    table = _table()

    assert sorted(table.claim() for _ in range(3)) == [0, 1, 2]
    assert table.free == 0
    with pytest.raises(OutOfPages, match="pool rows: wanted 1, free 0"):
        table.claim()


def test_a_released_row_is_zero_and_may_be_claimed_again() -> None:
    table = _table()
    row, other = table.claim(), table.claim()
    for array in (table.page_table, table.window, table.ring, table.length):
        array[:] = 7

    table.release(row)

    for array in (table.page_table, table.window, table.ring, table.length):
        assert not array[row].any()
        assert array[other].all()
    assert table.free == 2
    assert table.claim() == row


@pytest.mark.parametrize("row", [-1, 1, 3])
def test_a_row_that_nobody_has_cannot_be_released(row: int) -> None:
    table = _table()
    assert table.claim() == 0

    with pytest.raises(IntegrityError, match=f"row {row} is not claimed"):
        table.release(row)
    assert table.free == 2
