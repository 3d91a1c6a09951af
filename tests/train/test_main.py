"""The command of a training: what it refuses before it does anything."""

from pathlib import Path

import pytest

from tests.train.__main__ import _main
from tests.train.trainer import STATE


def test_a_run_is_not_begun_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / STATE).mkdir()
    monkeypatch.setattr("sys.argv", ["train", "--out", str(tmp_path), "--minutes", "0"])

    with pytest.raises(SystemExit) as ended:
        _main()

    assert ended.value.code == 2
    assert "holds a run" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [tmp_path / STATE]
