"""What one rank is told, and what it does with it."""

import os
import threading

import msgspec
import pytest
import torch
import torch.distributed as dist

import runtime.executor.rank_process as rank_process
from runtime.config import ServerConfig
from runtime.executor.rank_process import RankTask
from runtime.wire.channel import RankAddress
from runtime.wire.rank_line import RankLineWriter


def test_a_task_arrives_as_it_was_given() -> None:
    config = ServerConfig(
        model_path="/m", tp_size=4, cuda_graph_bs=(1, 2), override_config='{"a": 1}'
    )
    task = RankTask(config, 3, RankAddress("plans", "results"), "/f/ranks", 7, 4321)

    assert msgspec.json.decode(msgspec.json.encode(task), type=RankTask) == task


def test_a_heart_beats_until_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_process, "_BEAT_S", 0.001)
    read, write = os.pipe()
    line = RankLineWriter(write)
    heart = threading.Thread(target=rank_process._beat, args=(line,), daemon=True)
    heart.start()

    with os.fdopen(read, "rb") as beats:
        heard = [beats.readline() for _ in range(3)]
    heart.join(timeout=60.0)

    assert heard == [heard[0]] * 3
    assert not heart.is_alive()
    os.close(write)


@pytest.mark.parametrize(
    ("fault", "is_of_peer", "advised"),
    [
        (RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True, False),
        (dist.DistBackendError("NCCL error: remote process exited"), True, False),
        (dist.DistBackendError("NCCL error: CUDA failure 2 'out of memory'"), False, True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), False, True),
        (MemoryError(), False, True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), False, True),
        (ValueError("a plan that is none"), False, False),
    ],
)
def test_a_fault_is_told_with_what_it_comes_from(
    fault: Exception, is_of_peer: bool, advised: bool
) -> None:
    told = rank_process._told(fault)

    assert rank_process._is_of_peer(fault) == is_of_peer
    assert told.startswith("out of memory: lower --mem-fraction-static") == advised
    assert type(fault).__name__ in told
    assert str(fault) in told
