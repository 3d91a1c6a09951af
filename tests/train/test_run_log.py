"""The log of a run."""

import math
from dataclasses import fields
from pathlib import Path

from tests.train.run_log import LogRow, RunLog, read_log


def row(step: int) -> LogRow:
    """Return a row of made-up figures."""
    numbers = {field.name: math.nan for field in fields(LogRow) if field.type == "float"}
    values = {**dict.fromkeys((field.name for field in fields(LogRow)), 0.25), **numbers}
    return LogRow(**{**values, "step": step, "phase": "one", "length": 8, "tokens": 9})  # type: ignore[arg-type]


def test_rows_are_added_and_those_of_an_unsaved_slice_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "run" / "log.csv"
    log = RunLog(path, until=0)
    for step in (10, 20, 30):
        log.add(row(step))

    RunLog(path, until=20).add(row(25))

    rows = read_log(path)
    assert [row["step"] for row in rows] == ["10", "20", "25"]
    assert list(rows[0]) == [field.name for field in fields(LogRow)]
    assert rows[0]["loss"] == "0.25"
