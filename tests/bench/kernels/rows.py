"""Rows of CSV files that benchmarks of ops add to."""

import csv
import datetime
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.bench.serving.machine import commit

__all__ = ["MOVED", "WHERE", "add_rows"]

# What every row begins with.
WHERE = ("date", "GPU", "commit", "op", "backend", "shape")
# Columns of ops that move bytes.
MOVED = ("us", "floor us", "copy us", "ratio")


def add_rows(target: Path, figures: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Add rows to a file, which is made with a line of names if it is not there.

    figures  names of what was measured
    rows     op, backend, shape, and a figure each
    """
    fresh = not target.exists()
    target.parent.mkdir(parents=True, exist_ok=True)
    start = (datetime.date.today().isoformat(), torch.cuda.get_device_name(), commit())
    with target.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow((*WHERE, *figures))
        writer.writerows((*start, *row) for row in rows)
