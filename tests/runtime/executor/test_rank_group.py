"""Ranks as processes: how their scheduler starts them, misses them and ends them."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runtime.executor.rank_group as rank_group
from runtime.config import ServerConfig
from runtime.errors import ConfigError, WorkerDied
from runtime.executor.joint_executors import RemoteJointExecutor
from runtime.executor.rank_child import RankChild
from runtime.executor.rank_group import RankGroup, start_ranks
from runtime.profile_messages import Profiled
from tests.end_to_end.tiny_model import CONFIG, tiny_model_flags

POOLS = {"full_pages": 4, "swa_pages": 12, "rings": 3, "max_running_requests": 2}
LIMIT_S = 60.0


def config_of(folder: Path, **change: object) -> ServerConfig:
    """Return the flags of two ranks over a tiny checkpoint in `folder`."""
    tiny_model_flags(folder)
    raw = {**CONFIG, **change}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return ServerConfig(
        model_path=str(folder),
        load_format="dummy",
        device="cpu",
        tp_size=2,
        **POOLS,  # type: ignore[arg-type]
    )


@contextlib.contextmanager
def ranks_of(config: ServerConfig, folder: Path) -> Iterator[RankGroup]:
    """Start ranks; afterwards none is left."""
    made = folder / "s"
    made.mkdir()
    group = RankGroup(config, str(made))
    try:
        yield group
    finally:
        group.kill()
        group.channel.close()
        for rank in group._ranks:
            rank.close()
        assert all(rank.process.poll() is not None for rank in group._ranks)


def test_ranks_load_and_a_lost_one_is_named(tmp_path: Path) -> None:
    with ranks_of(config_of(tmp_path), tmp_path) as group:
        told = group.loaded()

        assert told.sizes.full_pages == 4
        assert [memory.rank for memory in told.memory] == [0, 1]
        for memory in told.memory:
            assert memory.pool_bytes == told.pool_bytes
            assert 0 < memory.weight_bytes < memory.total_bytes
            assert 0 < memory.free_bytes <= memory.total_bytes
        for rank in group._ranks:
            rank.hear()
            rank.heard_s = time.monotonic()
        assert group._lost(1.5) is None
        os.kill(group._ranks[1].process.pid, signal.SIGSTOP)
        ends = time.monotonic() + LIMIT_S
        while (lost := group._lost(1.5)) is None:
            assert time.monotonic() < ends
            time.sleep(0.05)
        assert lost.how_it_ended().startswith("rank 1 has not been heard of for ")
        group._ranks[1].process.kill()
        group._ranks[1].process.wait()
        assert group.why_lost() == "rank 1 was killed by SIGKILL"


def test_a_network_that_cannot_be_shared_is_an_error_of_flags(tmp_path: Path) -> None:
    config = config_of(tmp_path, vocab_size=511)

    with (
        ranks_of(config, tmp_path) as group,
        pytest.raises(ConfigError, match="--tp-size 2: 511 tokens of the vocabulary"),
    ):
        group.loaded()


def test_a_rank_that_dies_while_it_loads_ends_the_others(tmp_path: Path) -> None:
    with ranks_of(config_of(tmp_path), tmp_path) as group:
        group._ranks[0].process.kill()

        with pytest.raises(WorkerDied, match="rank 0 was killed by SIGKILL"):
            group.loaded()

        assert all(rank.process.poll() is not None for rank in group._ranks)


def test_a_rank_that_stops_while_it_loads_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_group, "_LOADING_SILENCE_S", 2.0)
    with ranks_of(config_of(tmp_path), tmp_path) as group:
        wait_for_beat(group._ranks[1])
        os.kill(group._ranks[1].process.pid, signal.SIGSTOP)
        wait_for_beat(group._ranks[0])

        with pytest.raises(WorkerDied, match="rank 1 has not been heard of for "):
            group.loaded()


def wait_for_beat(rank: RankChild) -> None:
    """Return once its heart beats."""
    started_s = rank.heard_s
    ends = time.monotonic() + LIMIT_S
    while rank.heard_s == started_s:
        assert time.monotonic() < ends
        rank.hear()
        time.sleep(0.01)


class Child:
    """Stands for a rank's process: rank 1 has failed, and rank 0 over it."""

    lost_ranks: frozenset[int] = frozenset()

    def __init__(self, rank: int, *given: object) -> None:
        self.rank, self.tracing, self.lost_a_peer = rank, rank == 1, rank == 0
        self.answers = [Profiled(rank, True, "told")]
        self.silences: list[float] = []

    def hear(self) -> list[Profiled]:
        """Return each answer once."""
        answers, self.answers = self.answers, []
        return answers

    def is_lost(self, silence_s: float) -> bool:
        """Note the limit."""
        self.silences.append(silence_s)
        return self.rank in self.lost_ranks

    def how_it_ended(self) -> str:
        """Name it."""
        return f"rank {self.rank} ended"


def test_answers_are_passed_on_and_the_rank_that_was_lost_first_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_group, "RankChild", Child)
    monkeypatch.setattr(rank_group, "_LOOK_S", 0.0)
    config = ServerConfig(model_path="/m", device="cpu", tp_size=2, watchdog_timeout=77.0)
    group = RankGroup(config, str(tmp_path))
    children: list[Any] = list(group._ranks)
    heard: list[tuple[int, Profiled]] = []
    group.listen(lambda rank, answer: heard.append((rank, answer)), lambda: False)

    assert group.tracing
    assert group._lost() is None
    assert heard == [(rank, Profiled(rank, True, "told")) for rank in (0, 1)]
    children[1].tracing = False
    assert not group.tracing
    assert group._lost() is None
    assert children[0].silences == [77.0, rank_group._SILENCE_S]
    monkeypatch.setattr(Child, "lost_ranks", frozenset({0, 1}))
    assert group.why_lost() == "rank 1 ended"
    group.channel.close()


def test_ranks_with_rows_of_their_own_all_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Any = object()
    monkeypatch.setattr(rank_group, "RankChild", Child)
    monkeypatch.setattr(RankGroup, "loaded", lambda group: told)
    monkeypatch.setattr(RankGroup, "watch", lambda group: None)

    config = ServerConfig(model_path="/m", device="cpu", tp_size=2, dp_size=2)

    loaded = start_ranks(config, str(tmp_path))

    assert isinstance(loaded.joint, RemoteJointExecutor)
    assert loaded.runner is loaded.joint.replicas[0]
    assert loaded.told is told
    channel = loaded.joint.replicas[1]._channel
    assert all(address.results for address in channel.addresses)
    channel.close()
