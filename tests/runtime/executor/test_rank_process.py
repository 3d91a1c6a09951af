"""What one rank is told, and what it does with it."""

import os
import threading

import msgspec
import pytest

import runtime.executor.rank_process as rank_process
from runtime.config import ServerConfig
from runtime.executor.rank_process import RankTask
from runtime.wire.channel import RankAddress


def test_a_task_arrives_as_it_was_given() -> None:
    config = ServerConfig(
        model_path="/m", tp_size=4, cuda_graph_bs=(1, 2), override_config='{"a": 1}'
    )
    task = RankTask(config, 3, RankAddress("plans", "results"), "/f/ranks", 7, 4321)

    assert msgspec.json.decode(msgspec.json.encode(task), type=RankTask) == task


def test_a_heart_beats_until_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_process, "_BEAT_S", 0.001)
    read, write = os.pipe()
    heart = threading.Thread(target=rank_process._beat, args=(write,), daemon=True)
    heart.start()

    beats = b"".join(os.read(read, 1) for _ in range(3))
    os.close(read)
    heart.join(timeout=60.0)

    assert beats == bytes(3)
    assert not heart.is_alive()
    os.close(write)
