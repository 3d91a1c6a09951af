"""The command, through real servers: every condition happens there and is proven."""

import json
from pathlib import Path

import pytest

from tests.evaluate.__main__ import main
from tests.evaluate.conditions import CONDITIONS
from tests.evaluate.options import Options
from tests.evaluate.results import Results
from tests.evaluate.test_tally import outcome


def test_a_server_that_is_not_there_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--url", "http://127.0.0.1:9", "--n", "1", "--tasks", "sums"]) == 1
    assert capsys.readouterr().err.startswith("error: ConnectError")


def test_a_server_that_does_not_start_is_told_with_its_own_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--n", "1", "--tasks", "sums", "--", "--context-length", "0"]

    assert main(argv) == 1
    assert "--context-length 0 must be at least 2" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_takes_none_of_the_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluate(options: Options, results: Results) -> None:
        results.outcomes.append(outcome("f", right=True))

    monkeypatch.setattr("tests.evaluate.__main__.evaluate", evaluate)
    missing, table = tmp_path / "no" / "run.json", tmp_path / "run.csv"

    assert main(["--json", str(missing), "--csv", str(table)]) == 1

    assert capsys.readouterr().err.startswith("error: FileNotFoundError")
    assert len(table.read_text().splitlines()) == 2


@pytest.mark.slow
def test_all_conditions_happen_on_a_real_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "run.json"
    asked = ["--tasks", "needle", "sums", "--distances", "1000", "--n", "1", "--max-tokens", "8"]
    argv = [*asked, "--deterministic"]

    code = main([*argv, "--conditions", *CONDITIONS, "--json", str(document), "--quiet"])

    assert code == 0
    assert "| tombstone | 2 | 2 | 1 |" in capsys.readouterr().out
    told = json.loads(document.read_text())
    assert all(row["proven"] for row in told["outcomes"])
    assert {row["condition"] for row in told["outcomes"]} == set(CONDITIONS)
    assert all(change["same_tokens"] == change["n"] for change in told["changes"])


@pytest.mark.slow
def test_other_formats_and_networks_answer_the_same_prompts(tmp_path: Path) -> None:
    document = tmp_path / "run.json"
    asked = ["--tasks", "needle", "tool_calls", "--distances", "300", "--n", "2"]
    argv = [*asked, "--device", "cpu"]
    compared = ["--kv", "fp32", "--without", "window", "c4", "c128"]

    assert main([*argv, *compared, "--max-tokens", "8", "--json", str(document), "--quiet"]) == 0

    told = json.loads(document.read_text())
    prompts: dict[str, set[int]] = {}
    for row in told["outcomes"]:
        prompts.setdefault(row["case"], set()).add(row["prompt_tokens"])
    assert {len(lengths) for lengths in prompts.values()} == {1}
    changed = {change["variant"]: change for change in told["changes"]}
    assert set(changed) == {"fp32", "without window", "without c4", "without c128"}
    assert changed["without window"]["same_tokens"] < changed["without window"]["n"]


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", [(), ("--deterministic",)], ids=["plain", "deterministic"])
def test_on_a_gpu_reuse_changes_close_choices_alone(tmp_path: Path, mode: tuple[str, ...]) -> None:
    """With --deterministic it changes no bit, and neither do steps of other sizes."""
    document, deterministic = tmp_path / "run.json", bool(mode)
    asked = ["--tasks", "needle", "facts", "sums", "--distances", "300", "1500", "--n", "4"]
    argv = [*asked, "--device", "cuda", *mode, "--kv", "fp32", "--without", "c4"]

    code = main([*argv, "--conditions", *CONDITIONS, "--json", str(document), "--quiet"])

    told = json.loads(document.read_text())
    assert code == 0
    assert all(row["proven"] for row in told["outcomes"])
    assert set(told["left_out"]) == {"fp32", "without c4"}
    assert {change["variant"] for change in told["changes"]} == {"default", "no cache"}
    for change in told["changes"]:
        assert change["same_tokens"] + change["excused"] == change["n"], change
        assert not deterministic or change["same_bits"] == change["n"], change
    noise = told["noise"]
    assert noise["n"] >= len({row["case"] for row in told["outcomes"]})
    assert told["margin"] == (0 if deterministic else noise["most"])
    assert noise["most"] == 0 or not deterministic
