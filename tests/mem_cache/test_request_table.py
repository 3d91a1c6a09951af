"""Rows are claimed once, and all zeros when nobody has them."""

import numpy as np
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
    assert (table.state.shape, table.state.dtype) == ((3,), "int32")
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
    for array in (table.page_table, table.window, table.state, table.length):
        array[:] = 7

    table.release(row)

    for array in (table.page_table, table.window, table.state, table.length):
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


def test_changes_are_what_was_written_since_they_were_taken() -> None:
    table = RequestTable(TreeSpec(page_size=8, swa_page_size=4, window=8), rows=3, max_pages=4)
    row = table.claim()
    table.write_pages(row, 1, np.array([7, 9]))
    table.write_pages(row, 1, np.array([], dtype=np.int32))
    table.write_window(row, 0, np.array([5]))
    table.write_window(row, 0, np.array([], dtype=np.int32))
    table.write_state(row, 3)

    changes = table.take_changes()

    assert table.page_table[row].tolist() == [0, 7, 9, 0]
    assert (table.window[row].tolist(), int(table.state[row])) == ([5, 0], 3)
    assert (table.rows, changes.released.tolist()) == (3, [])
    assert changes.pages.tolist() == [[row, 1, 7], [row, 2, 9]]
    assert changes.windows.tolist() == [[row, 0, 5]]
    assert changes.states.tolist() == [[row, 3]]
    for part in (changes.released, changes.pages, changes.windows, changes.states):
        assert part.dtype == np.int32

    table.release(row)
    table.write_state(table.claim(), 2)
    again = table.take_changes()
    assert (again.released.tolist(), again.pages.shape) == ([row], (0, 3))
    assert again.states.tolist() == [[row, 2]]
    assert table.take_changes().states.shape == (0, 2)
