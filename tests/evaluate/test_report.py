"""Tables, files and goals say what the outcomes were."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.answer import Choice
from tests.evaluate.conditions import Outcome
from tests.evaluate.plots import write_plot
from tests.evaluate.record import write_card, write_csv, write_json
from tests.evaluate.report import accuracy_table, report
from tests.evaluate.results import Results
from tests.evaluate.tally import Share
from tests.evaluate.test_tally import outcome


def _results() -> Results:
    cold = [
        *(outcome(f"f{k}", right=k > 0, distance=64) for k in range(4)),
        outcome("g", right=True, distance=8192, stopped=False),
        outcome("s", right=False, row="json_schema", valid=True),
    ]
    hits = [outcome(f"f{k}", right=True, distance=64, condition="hit") for k in range(4)]
    other = [outcome("g", right=False, distance=8192, variant="without c4", tokens=(7,))]
    return Results([*hits, *other, *cold])


def test_a_row_a_task_and_a_column_a_distance() -> None:
    lines = list(accuracy_table(_results().base()))

    assert lines[0] == "| task | 64 | 8192 | own size |"
    assert lines[2].startswith("| facts | 75.0 (30-95) | 100.0 (21-100) |  |")
    assert lines[3].startswith("| json_schema |  |  | 0.0 (0-79) |")


def test_the_report_tells_states_of_the_cache_and_other_servers_apart() -> None:
    text = report(_results())

    assert "| hit | 4 | 4 | 0 | 0.0 |  | 100.0 (51-100) | +25.0 ±21.7 | 4/4 | 0 | 0 |  |" in text
    assert "| task | default | without c4 |" in text
    assert "-100.0" in text
    assert "stopped by itself: 83.3" in text
    assert "valid, of json_schema: 100.0" in text


_CUDA = {"device": "cuda", "device_name": "Some GPU", "dtype": "bfloat16", "record_format": "fp8"}


def _chosen(key: str, lead: float, **more: Any) -> Outcome:
    """Return an outcome of one token, likelier by `lead` than another."""
    told = outcome(key, right=True, **more)
    choice = Choice("a", -0.5, {"a": -0.5, "b": -0.5 - lead})
    return replace(told, answer=replace(told.answer, choices=(choice,)))


def test_on_a_gpu_the_margin_is_what_a_server_without_a_cache_changes() -> None:
    cold, alone = _chosen("f", 0.25), _chosen("f", 0.75, variant="no cache")
    results = Results([cold, _chosen("f", 0.25, condition="hit"), alone], _CUDA)

    text = report(results)

    assert results.margin == pytest.approx(0.5)
    assert text.startswith("Server: Some GPU, bfloat16, KV fp8\n")
    assert "| hit | 1 | 1 | 0 | 0.0 |  | 100.0 (21-100) | +0.0 ±0.0 | 1/1 | 0 | 0 | 1/1 |" in text
    assert "differ by 0.5000 nats (median), 0.5000 at most, of 1 tokens" in text
    assert "margin: 0.5000 nats" in text


def test_a_server_that_promises_the_same_bits_has_no_margin() -> None:
    outcomes = [_chosen("f", 0.25), _chosen("f", 0.75, variant="no cache")]
    exact = Results(outcomes, {**_CUDA, "deterministic": True})

    assert (exact.margin, Results(outcomes).margin) == (0, 0)
    assert exact.server().endswith("the same bits in any state of the cache")
    unmeasured = Results([_chosen("f", 0.25), _chosen("f", 0.25, condition="hit")], _CUDA)
    assert "was not measured on this server" in report(unmeasured)


def test_what_was_not_asked_is_said_with_the_reason() -> None:
    results = _results()
    results.left_out["fp32"] = "not here"

    assert report(results).endswith("\n\nnot asked: fp32: not here")


def test_goals_are_those_of_the_cases_that_were_asked() -> None:
    goals = {name: told for name, _, told in _results().goals()}

    assert goals == {
        "facts_2k": Share(3, 4),
        "facts_8k": Share(1, 1),
        "json": Share(0, 1),
        "stops": Share(5, 6),
    }


def test_the_default_server_with_a_cold_cache_comes_first() -> None:
    assert _results().runs()[0] == ("default", "cold")


def test_files_have_every_cell_and_every_outcome(tmp_path: Path) -> None:
    results = _results()
    document, table, card = (tmp_path / name for name in ("a.json", "a.csv", "card.json"))

    write_json(document, {"seed": 4}, results)
    write_csv(table, results)
    write_card(card, results)

    told = json.loads(document.read_text())
    assert (told["seed"], told["server"], told["margin"]) == (
        4, "cpu, the same bits in any state of the cache", 0
    )  # fmt: skip
    assert len(told["outcomes"]) == len(results.outcomes)
    assert [row["said"] for row in told["outcomes"] if not row["right"]] == ["y"] * 3
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(row["n"], row["right"]) for row in rows if row["condition"] == "hit"] == [("4", "4")]
    assert len(rows) == len(told["cells"]) == 5
    [change] = [one for one in told["changes"] if one["variant"] == "without c4"]
    assert (change["lost"], change["same_tokens"]) == (1, 0)
    assert json.loads(card.read_text())["facts_8k"] == "100.0 (21-100) %"


def test_the_picture_is_drawn_of_any_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    write_plot(tmp_path / "all.png", _results())

    assert (tmp_path / "all.png").stat().st_size > 1000
