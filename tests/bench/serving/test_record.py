"""What is kept: JSON that is JSON, and CSV rows under one header."""

import csv
import json
import sys
from pathlib import Path

import pytest

from tests.bench.serving.machine import commit, machine
from tests.bench.serving.plots import NoMatplotlib, load_matplotlib, tokens_over_time, write_plots
from tests.bench.serving.record import append_csv, figures, request_row, write_json
from tests.bench.serving.summary import by_group, ideal_hits, summarise
from tests.bench.serving.test_summary import two_turns


def test_rows_are_added_under_one_header(tmp_path: Path) -> None:
    asked = two_turns()
    told = summarise(asked, ideal_hits(asked))
    path = tmp_path / "runs.csv"

    for server in ("a", "b"):
        append_csv(path, {"date": "today", "server": server}, told)

    rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    assert [row["server"] for row in rows] == ["a", "b"]
    assert float(rows[0]["ttft_p50_ms"]) == 500
    assert float(rows[0]["ideal_share"]) == pytest.approx(5 / 9, abs=1e-4)


def test_a_file_with_other_columns_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("something,else\n")

    with pytest.raises(ValueError, match="other columns"):
        append_csv(path, {"date": "today"}, summarise([], []))
    assert path.read_text() == "something,else\n"


def test_a_document_can_be_read_again(tmp_path: Path) -> None:
    asked = two_turns()
    path = tmp_path / "run.json"

    write_json(
        path,
        {"figures": figures(summarise(asked, [0, 0])), "requests": [request_row(a) for a in asked]},
    )

    document = json.loads(path.read_text())
    assert document["figures"]["ttft"]["p50"] == pytest.approx(500)
    assert document["figures"]["output_tokens_per_s"] > 0
    assert document["requests"][1]["group"] == "turn 2"


def test_the_machine_and_the_commit_have_names() -> None:
    assert "CPU" in machine()
    assert commit()


def test_tokens_over_time_are_all_the_tokens() -> None:
    ends, rates = tokens_over_time(two_turns())

    assert sum(rates) * ends[0] == pytest.approx(4)


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(NoMatplotlib, match="pip install matplotlib"):
        load_matplotlib()


def test_pictures_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    asked = two_turns()

    written = write_plots(tmp_path / "p", asked, by_group(asked, ideal_hits(asked)))

    assert [path.name for path in written] == ["latency.png", "throughput.png", "groups.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
