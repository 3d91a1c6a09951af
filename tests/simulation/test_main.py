"""The command: what it prints of a life that fails can be run again."""

from pathlib import Path

import pytest

from tests.simulation.__main__ import main
from tests.simulation.faults import planted


def test_a_failing_seed_is_printed_as_a_script_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with planted("end is told twice"):
        assert main(["--seeds", "0..1", "--steps", "20"]) == 1
    seed, fault, *script, _, total = capsys.readouterr().out.splitlines()
    assert seed == "seed 0:"
    assert total.endswith("failed: [0]")
    path = tmp_path / "failing.jsonl"
    path.write_text("\n".join(script), "utf-8")

    with planted("end is told twice"):
        assert main(["--script", str(path), "--no-shrink"]) == 1
    assert capsys.readouterr().out.split(": ")[0] == fault.split(": ")[0] == "Violation"
    assert main(["--script", str(path)]) == 0


def test_a_sound_life_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "3", "--steps", "20"]) == 0
    assert capsys.readouterr().out.endswith("steps: sound\n")
