"""Lines and rows of figures."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.network.report import (
    Figures,
    OtherColumns,
    add_rows,
    added,
    added_table,
    heading,
    line,
)

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
    exact = line(replace(DECODE, deterministic=True))
    assert (len(exact), exact.split()[1:3]) == (len(heading()), ["fp4", "det"])


def test_rows_are_added_under_one_heading(tmp_path: Path) -> None:
    target = tmp_path / "new" / "figures.csv"

    add_rows(target, [DECODE], gpu="some GPU", commit="abc")
    add_rows(target, [PREFILL], gpu="some GPU", commit="abc")

    with target.open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert (first["GPU"], first["share"], first["chunk"]) == ("some GPU", "0.75", "")
    assert (second["phase"], second["share"], second["tokens_per_s"]) == ("prefill", "", "131072.0")
    assert list(first)[-2:] == ["kv_floor_ms", "deterministic"]
    assert (first["deterministic"], second["deterministic"]) == ("False", "False")


def test_rows_go_under_no_other_columns(tmp_path: Path) -> None:
    target = tmp_path / "old.csv"
    target.write_text("date,GPU\n1,2\n", encoding="utf-8")

    with pytest.raises(OtherColumns, match=r"old\.csv has other columns than date,GPU,commit,"):
        add_rows(target, [DECODE], gpu="some GPU", commit="abc")

    assert target.read_text(encoding="utf-8") == "date,GPU\n1,2\n"


def test_a_longer_context_is_held_against_the_shortest_of_as_many_rows() -> None:
    short = replace(DECODE, tokens=4096, ms=8.0, kv_floor_ms=0.5)
    long = replace(DECODE, tokens=900_000, ms=9.0, kv_floor_ms=1.3)
    others = [
        replace(long, rows=16),
        replace(long, deterministic=True),
        replace(long, experts="fp8"),
    ]

    [one] = added([long, PREFILL, short, *others, DECODE])

    assert (one.rows, one.tokens, one.beyond) == (64, 900_000, 4096)
    assert (one.ms, one.floor_ms, one.ratio) == pytest.approx((1.0, 0.8, 1.25))
    heading_of_added, told = added_table([short, long])
    assert len(heading_of_added) == len(told)
    assert told.split() == ["64", "900000", "4096", "1.0000", "0.8000", "1.25"]
    assert added_table([long, PREFILL]) == []
