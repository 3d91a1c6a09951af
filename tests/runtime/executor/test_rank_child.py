"""How a rank's process is heard, and what is said of its end."""

import time
from pathlib import Path

import pytest

import runtime.executor.rank_child as rank_child
from runtime.config import ServerConfig
from runtime.executor.rank_child import RankChild
from runtime.executor.rank_process import PEER_EXIT_CODE
from runtime.profile_messages import Profiled
from runtime.rank_memory import RankMemory
from runtime.wire.channel import RankAddress

MEMORY = RankMemory(1, 2, 3, 4, 5, 6, 7)
ANSWER = Profiled(8, True, "tracing")
# Reads its task, and says what a rank may say.
SCRIPT = f"""
import os, sys
import msgspec
from runtime.child import exit_with
from runtime.executor.rank_process import RankTask
from runtime.profile_messages import Profiled
from runtime.rank_memory import RankMemory
from runtime.wire.rank_line import RankLineWriter
task = msgspec.json.decode(sys.stdin.buffer.read(), type=RankTask)
line = RankLineWriter(task.lines)
line.write({MEMORY!r})
line.tracing = lambda: True
line.write({ANSWER!r})
exit_with(int(sys.argv[1]), "the ring was cut", {PEER_EXIT_CODE})
"""


def test_what_a_rank_says_is_kept_and_its_end_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(rank_child, "MAIN", "said")
    child = RankChild(1, ServerConfig(model_path="/m"), RankAddress("plans"), "meeting")
    try:
        assert not child.is_lost(60.0)
        assert child.memory is None
        child.process.wait(60.0)

        answers = child.hear()

        assert (answers, child.memory, child.tracing) == ([ANSWER], MEMORY, True)
        assert child.is_lost(60.0)
        assert child.lost_a_peer
        for _ in range(2):
            told = child.how_it_ended()
            assert told == f"rank 1 exited with code {PEER_EXIT_CODE}: the ring was cut"
    finally:
        child.process.kill()
        child.process.wait()
        child.close()


def test_a_silent_rank_and_a_killed_one_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeping.py").write_text("import time; time.sleep(600)", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(rank_child, "MAIN", "sleeping")
    child = RankChild(0, ServerConfig(model_path="/m"), RankAddress("plans"), "meeting")
    try:
        time.sleep(0.01)
        assert child.is_lost(0.0)
        assert child.how_it_ended().startswith("rank 0 has not been heard of for 0.")
    finally:
        child.process.kill()
        child.process.wait()
        assert child.how_it_ended() == "rank 0 was killed by SIGKILL"
        assert not child.lost_a_peer
        child.close()
