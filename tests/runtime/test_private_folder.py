"""A folder stays while its process lives; where that was killed, the next process removes it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.errors import RuntimeFault
from runtime.private_folder import private_folder
from tests.testing.scripts import script_environment

HOLD = """
import time
from runtime.private_folder import private_folder
with private_folder(200) as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_left_is_removed_and_nothing_else(root: Path) -> None:
    elsewhere, others = root / "elsewhere", root / "umbra-of-others"
    for folder in (elsewhere, others):
        folder.mkdir()
    (elsewhere / "claim").touch()
    (root / "umbra-link").symlink_to(elsewhere)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], env=script_environment(), stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        with private_folder(200) as mine:
            with private_folder(200):
                assert held.is_dir()
                assert Path(mine).is_dir()
            os.kill(holder.pid, signal.SIGKILL)
            holder.wait()
            assert held.is_dir()

            with private_folder(200):
                assert not held.exists()
                assert Path(mine).is_dir()

    assert sorted(path.name for path in root.iterdir()) == [
        "elsewhere",
        "umbra-link",
        "umbra-of-others",
    ]
    assert (elsewhere / "claim").is_file()


def test_a_long_place_is_passed_over_and_a_bad_one_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_folder(20) as folder:
        assert Path(folder).parent != root
        assert os.stat(folder).st_mode & 0o777 == 0o700

    monkeypatch.setattr("tempfile.tempdir", str(root / "nowhere"))
    with pytest.raises(RuntimeFault, match="TMPDIR"), private_folder(200):
        pass


def test_a_folder_whose_owner_was_killed_before_its_claim_is_removed_once_it_is_old(
    root: Path,
) -> None:
    dead, alive, files, new = (root / f"umbra-{name}" for name in ("dead", "alive", "files", "new"))
    for folder in (dead, alive, files, new):
        folder.mkdir()
    (dead / ".claim").touch()
    (files / "mine").touch()
    with socket.socket(socket.AF_UNIX) as gone, socket.socket(socket.AF_UNIX) as listener:
        gone.bind(str(dead / "to_scheduler"))
        listener.bind(str(alive / "to_scheduler"))
        listener.listen()
        gone.close()
        for folder in (dead, alive, files):
            os.utime(folder, (0, 0))

        with private_folder(200):
            left = {path.name for path in root.iterdir()}

    assert left >= {"umbra-alive", "umbra-files", "umbra-new"}
    assert "umbra-dead" not in left
