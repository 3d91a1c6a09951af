"""The arrays behind rows: types, what is left out, and what does not fit."""

import dataclasses

import msgspec
import numpy as np
import pytest

from mem_cache.spec import TreeSpec
from runtime.executor.plan_rows import PlanRows, sampled_entries
from runtime.wire.arrays import INT32, INT64, packed
from runtime.wire.step import Rows
from tests.testing.plans import PlannedRow, Plans, packed_rows

ROWS = (
    PlannedRow(3, 10, [5, 6, 7], drafts=2, from_device=2),
    PlannedRow(0, 0, [8], window_from=4, write_from=9),
    PlannedRow(9, 2**40, [1, 2], from_device=1),
)


def test_every_column_has_its_type_and_its_values() -> None:
    rows = PlanRows.of(packed_rows(ROWS))

    told = {f.name: getattr(rows, f.name) for f in dataclasses.fields(rows)}
    assert {name: (str(a.dtype), a.tolist()) for name, a in told.items()} == {
        "line": ("int32", [3, 0, 9]),
        "start": ("int64", [10, 0, 2**40]),
        "count": ("int32", [3, 1, 2]),
        "ids": ("int32", [5, 6, 7, 8, 1, 2]),
        "from_device": ("uint8", [2, 0, 1]),
        "drafts": ("int32", [2, 0, 0]),
        "window_from": ("int64", [0, 4, 0]),
        "write_from": ("int64", [0, 9, 0]),
    }
    assert rows.end.tolist() == [13, 1, 2**40 + 2]
    assert rows.last_index.tolist() == [2, 3, 5]
    assert rows.fed.tolist() == [0, 2]


def test_columns_that_are_left_out_are_zeros() -> None:
    bare = Rows(packed([1, 2], INT32), packed([0, 3], INT64), packed([1, 1], INT32), bytes(8))

    rows = PlanRows.of(bare)

    for name in ("from_device", "drafts", "window_from", "write_from"):
        assert getattr(rows, name).tolist() == [0, 0], name
    assert not len(rows.fed)


def test_a_step_may_have_no_rows() -> None:
    rows = PlanRows.of(Rows(b"", b"", b"", b""))

    assert len(rows.line) == len(rows.ids) == len(rows.last_index) == 0


@pytest.mark.parametrize(
    ("name", "size"),
    [("start", 16), ("count", 8), ("ids", 20), ("ids", 28), ("drafts", 8), ("from_device", 2)],
)
def test_sizes_that_do_not_fit_together_are_refused(name: str, size: int) -> None:
    rows = msgspec.structs.replace(packed_rows(ROWS), **{name: bytes(size)})

    with pytest.raises(ValueError, match="cannot reshape"):
        PlanRows.of(rows)


def test_other_starts_change_nothing_else() -> None:
    rows = PlanRows.of(packed_rows(ROWS))

    moved = rows.starting_at(np.array([9, 0, 7]))

    assert moved.end.tolist() == [12, 1, 9]
    assert moved.ids is rows.ids
    assert rows.start[0] == 10


def test_entries_are_rows_with_their_own_lines_and_those_of_twins() -> None:
    plans = Plans(TreeSpec())
    plan = plans.plan(
        PlannedRow(3, 0, [5], sampled=False),
        PlannedRow(1, 0, [6], twins=(4, 5)),
        PlannedRow(2, 0, [7]),
    )

    row, line = sampled_entries(plan)

    assert (row.tolist(), line.tolist()) == ([1, 1, 1, 2], [1, 4, 5, 2])
    row, line = sampled_entries(plans.plan(PlannedRow(3, 1, [5], sampled=False)))
    assert len(row) == len(line) == 0
