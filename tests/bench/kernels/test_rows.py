"""Rows that benchmarks add to a file."""

from pathlib import Path

import pytest
import torch

from tests.bench.kernels.rows import MOVED, add_rows
from tests.bench.roofline.point import Machine, read_points


def test_rows_are_added_below_one_line_of_names_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    target = tmp_path / "new" / "ops.csv"

    add_rows(target, MOVED, [("rope", "cuda", "T=1", 2.0, 1.0, 1.5, 2.0)])
    add_rows(target, MOVED, [("rope", "sgl_kernel", "T=1", 4.0, 1.0, 1.5, 4.0)])

    assert len(target.read_text(encoding="utf-8").splitlines()) == 3
    found = list(read_points([target], Machine()))
    assert [(point.gpu, point.backend, point.us) for point in found] == [
        ("a card", "cuda", 2.0),
        ("a card", "sgl_kernel", 4.0),
    ]
