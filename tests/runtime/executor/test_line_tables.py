"""Tables of lines follow what plans say has changed, and nothing else."""

import numpy as np
import pytest

from runtime.executor.line_tables import LineTables
from runtime.wire.arrays import INT32, packed
from runtime.wire.step import TableChanges

LINES, PAGES, WINDOW = 5, 7, 3


def tables() -> LineTables:
    return LineTables(LINES, pages=PAGES, window_pages=WINDOW)


def test_changes_of_many_plans_add_up() -> None:
    made, rng = tables(), np.random.default_rng(0)
    pages, window, ring = (np.zeros_like(a) for a in (made.pages, made.window, made.state))
    for _ in range(50):
        parts: list[bytes] = []
        for table, width in ((pages, PAGES), (window, WINDOW)):
            count = int(rng.integers(4))
            places = rng.choice(table.size, count, replace=False)
            line, index = np.divmod(places, width)
            unit = rng.integers(1, 1000, count)
            table[line, index] = unit
            parts.append(packed(np.stack((line, index, unit), axis=1), INT32))
        line = rng.choice(LINES, int(rng.integers(3)), replace=False)
        ring[line] = rng.integers(1, 1000, len(line))
        parts.append(packed(np.stack((line, ring[line]), axis=1), INT32))

        made.apply(TableChanges(b"", *parts))

        assert (made.pages == pages).all()
        assert (made.window == window).all()
        assert (made.state == ring).all()


def test_nothing_changes_without_changes() -> None:
    made = tables()
    made.apply(TableChanges(states=packed([2, 9], INT32)))

    made.apply(TableChanges())
    made.apply(TableChanges(left=packed([2], INT32)))

    assert made.state.tolist() == [0, 0, 9, 0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        TableChanges(pages=packed([LINES, 0, 1], INT32)),
        TableChanges(pages=packed([0, PAGES, 1], INT32)),
        TableChanges(windows=packed([0, WINDOW, 1], INT32)),
        TableChanges(states=packed([LINES, 1], INT32)),
    ],
)
def test_lines_and_pages_that_are_not_there_are_refused(changes: TableChanges) -> None:
    with pytest.raises(IndexError):
        tables().apply(changes)
