"""The command: misuse is refused, and a run against a real server gives figures that agree."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.serving.__main__ import main
from tests.bench.serving.options import parse
from tests.bench.serving.workloads import MultiTurn
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.server_process import ServerProcess, running_server


def test_flags_and_numbers_meet_in_one_value() -> None:
    options = parse(["multi-turn", "--sessions", "2", "--request-rate", "3", "--csv", "x.csv"])

    assert options.recipe == MultiTurn(sessions=2)
    assert options.request_rate == 3
    assert options.told()["csv"] == "x.csv"
    assert parse(["random", "--api-key", "k"]).told()["api_key"] is None


def test_runs_at_different_rates_can_be_told_apart() -> None:
    flags = ["random", "--requests", "3"]

    rows = [parse([*flags, *rate]).numbers() for rate in ([], ["--request-rate", "2.5"])]

    assert "rate" not in rows[0]
    assert "request_rate=2.5" in rows[1].split()


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nothing"],
        ["random", "--request-rate", "0"],
        ["random", "--max-concurrency", "0"],
        ["random", "--extra-body", "[]"],
        ["random", "--extra-body", "{"],
        ["random", "--turns", "3"],
    ],
    ids=" ".join,
)
def test_misuse_exits_with_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)

    assert ended.value.code == 2


def test_a_server_that_is_not_there_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["random", "--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("error: ClientConnectorError")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of the tiny model."""
    with running_server(*tiny_model_flags(tmp_path_factory.mktemp("model"))) as running:
        yield running


@pytest.mark.parametrize("api", ["generate", "completions"])
def test_a_run_against_a_real_server_is_reported_and_kept(
    server: ServerProcess, api: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions, document, table = 3, tmp_path / "run.json", tmp_path / "runs.csv"
    numbers = {"sessions": sessions, "turns": 2, "system-tokens": 40, "user-tokens": 20}
    argv = ["multi-turn", "--url", server.url, "--api", api, "--flush-cache", "--quiet"]
    for name, value in {**numbers, "output-tokens": 4, "max-concurrency": 2}.items():
        argv += [f"--{name}", str(value)]

    code = main([*argv, "--output-file", str(document), "--csv", str(table), "--output-details"])

    assert code == 0
    assert "Successful requests:                    6" in capsys.readouterr().out
    told = json.loads(document.read_text())
    assert told["server"] == "umbra"
    assert told["figures"]["input_tokens"] == sessions * (60 + 60 + 4 + 20)
    assert told["figures"]["output_tokens"] == sessions * 2 * 4
    assert told["figures"]["cached_share"] <= told["figures"]["ideal_share"]
    # All that was computed in turn 1 is there in turn 2: its last token never was.
    assert told["groups"]["turn 2"]["cached_tokens"] == sessions * (60 + 3)
    # Tokens of the first event have no gap before them, and a server that is behind sends several.
    for row in told["requests"]:
        assert len(row["gaps_s"]) <= 3
        assert 0 < row["ttft_s"] + sum(row["gaps_s"]) <= row["e2e_s"] + 1e-6
    assert [row["workload"] for row in csv.DictReader(table.read_text().splitlines())] == [
        "multi-turn"
    ]


def test_a_file_that_cannot_be_written_is_told_below_the_report(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["random", "--url", server.url, "--requests", "1", "--input-tokens", "4", "--quiet"]

    code = main([*argv, "--output-tokens", "2", "--output-file", str(tmp_path / "no" / "x.json")])

    assert code == 1
    told = capsys.readouterr()
    assert "Successful requests:                    1" in told.out
    assert told.err.startswith("error: FileNotFoundError")


def test_failures_are_reported_and_make_the_command_fail(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["random", "--url", server.url, "--requests", "2", "--input-tokens", "4", "--quiet"]

    code = main([*argv, "--vocab-size", "1000000", "--warmup-requests", "0"])

    assert code == 1
    assert "Failed requests:                        2" in capsys.readouterr().out
