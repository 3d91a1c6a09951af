"""The picture of a run."""

from pathlib import Path

import pytest

from tests.train.curves import draw
from tests.train.run_log import RunLog
from tests.train.test_run_log import row


def test_curves_are_drawn_from_the_log(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    log = RunLog(tmp_path / "log.csv", until=0)
    for step in (10, 20, 30):
        log.add(row(step))

    draw(tmp_path / "log.csv", tmp_path / "curves.png")

    assert (tmp_path / "curves.png").stat().st_size > 1000
