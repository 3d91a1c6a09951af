"""Without Ray the command says what to install, and nothing of Ray is loaded before."""

import importlib.util
import subprocess
import sys

import pytest

from runtime.replicas.command import run


def test_without_ray_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert run(["--replicas", "2"]) == 2

    told = capsys.readouterr().err
    assert told.startswith("error: replicas need Ray Serve")
    assert "pip install -e '.[cpu,ray]'" in told
    assert told.count("\n") == 1


def test_flags_are_judged_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--replicas", "0"]) == 2
    assert "--replicas must lie" in capsys.readouterr().err


def test_the_command_loads_neither_ray_nor_torch() -> None:
    code = "import sys, runtime.replicas.command; print({'ray', 'torch'} & sys.modules.keys())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "set()"
