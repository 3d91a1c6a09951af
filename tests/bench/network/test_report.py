"""Lines and rows of figures."""

import csv
from pathlib import Path

from tests.bench.network.report import Figures, add_rows, heading, line

DECODE = Figures(
    phase="decode",
    experts="fp4",
    rows=64,
    tokens=8192,
    ms=8.0,
    tokens_per_s=8000.0,
    floor_ms=6.0,
    experts_a_layer=200.25,
)
PREFILL = Figures(
    phase="prefill", experts="both", rows=8, tokens=8192, ms=500.0, tokens_per_s=131072.0, chunk=16
)


def test_a_line_stands_under_its_heading() -> None:
    assert len(line(DECODE)) == len(line(PREFILL)) == len(heading())
    assert line(DECODE).split()[-2:] == ["6.000", "0.75"]
    assert line(PREFILL).split()[-2:] == ["-", "-"]


def test_rows_are_added_under_one_heading(tmp_path: Path) -> None:
    target = tmp_path / "new" / "figures.csv"

    add_rows(target, [DECODE], gpu="some GPU", commit="abc")
    add_rows(target, [PREFILL], gpu="some GPU", commit="abc")

    with target.open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert (first["GPU"], first["share"], first["chunk"]) == ("some GPU", "0.75", "")
    assert (second["phase"], second["share"], second["tokens_per_s"]) == ("prefill", "", "131072.0")
