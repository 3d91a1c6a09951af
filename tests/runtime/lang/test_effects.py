"""Tests of runtime.lang.effects: what must not be done twice."""

import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.lang.effects import assigns_outer_names, without_effects
from runtime.lang.loop import LOOP


class Stop(BaseException):
    """What is raised instead."""


def _sleeps(q: str) -> None:
    time.sleep(60)


def _connects(q: str) -> None:
    socket.create_connection(("127.0.0.1", 9))


def _starts(q: str) -> None:
    subprocess.run([sys.executable, "--version"], check=True)


def _begins_a_thread(q: str) -> None:
    threading.Thread(target=print).start()


@pytest.mark.parametrize(
    "act",
    [
        print,
        lambda q: print(f"{q}", file=sys.stderr),
        lambda q: sys.stdout.write(f"{q}"),
        _sleeps,
        _connects,
        _starts,
        _begins_a_thread,
        lambda q: Path("/no/such/folder/x").write_text(q, encoding="utf-8"),
        lambda q: os.remove("/no/such/folder/x"),
    ],
)
def test_a_call_with_effects_is_not_made(
    act: Callable[[str], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def body() -> None:
        with without_effects(Stop):
            try:
                act("x")
            except Exception:
                seen.append("a failure of the call")
            seen.append("what follows")

    with pytest.raises(Stop):
        body()

    assert seen == []
    assert capfd.readouterr() == ("", "")
    assert sys.getprofile() is None


class _Finalized:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __del__(self) -> None:
        self._path.write_text("done", "utf-8")


def test_reading_state_finalizers_and_the_language_itself_go_on(tmp_path: Path) -> None:
    called = threading.Event()
    with without_effects(Stop):
        assert Path(__file__).exists()
        io.StringIO().write("kept")
        _Finalized(tmp_path / "end")
        LOOP.call(called.set)

    assert (tmp_path / "end").read_text("utf-8") == "done"
    assert called.wait(60)


def test_a_profiler_is_left_alone() -> None:
    def profiler(*_: Any) -> None:
        pass

    sys.setprofile(profiler)
    try:
        with without_effects(Stop):
            time.sleep(0)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


def test_assigned_outer_names_are_seen() -> None:
    count = 0

    def inner() -> int:
        nonlocal count
        count = 1
        return count

    def reads() -> int:
        local = count
        return local

    assert assigns_outer_names(inner)
    assert not assigns_outer_names(reads)
    assert not assigns_outer_names(print)
