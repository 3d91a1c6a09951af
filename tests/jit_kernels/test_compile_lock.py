"""One process compiles at a time; the others wait, though not for ever."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import jit_kernels.compile_lock as compile_lock
from jit_kernels.compile_lock import CompileLock, alone
from tests.testing.scripts import script_environment

HOLD = """
import sys, time
from pathlib import Path
from jit_kernels.compile_lock import CompileLock
assert CompileLock(Path(sys.argv[1])).acquire("it")
print("held", flush=True)
time.sleep(600)
"""


def test_the_turn_of_a_process_that_dies_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        env=script_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        lock = CompileLock(path)
        assert not lock.acquire("it", limit_s=0.05)

        os.kill(holder.pid, signal.SIGKILL)

        assert lock.acquire("it", limit_s=60.0)
    lock.release()
    assert not path.exists()


def test_whoever_waits_says_so_and_compiles_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compile_lock, "_TELL_S", 0.1)
    path = tmp_path / "lock"
    with alone(path, "it"):
        assert not CompileLock(path).acquire("it", limit_s=0.3)
        assert not CompileLock(path).acquire("it", stopped=lambda: True)
        assert not CompileLock(tmp_path / "nowhere" / "lock").acquire("it")
        with alone(path, "it", limit_s=0.0):
            assert path.exists()

    told = [record.getMessage() for record in caplog.records]
    assert told.count("Another process compiles it: waiting for it") == 1
    assert any("not waiting" in line for line in told)


def test_turns_come_one_after_the_other(tmp_path: Path) -> None:
    path, inside = tmp_path / "lock", list[int]()

    def take(number: int) -> int:
        with alone(path, "it"):
            inside.append(number)
            there = len(inside)
            time.sleep(0.01)
            inside.remove(number)
        return there

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(take, range(4))) == [1] * 4
