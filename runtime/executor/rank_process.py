"""A rank of a network as a process of its own: `python -m runtime.executor.rank_process FD`.

It reads its task from stdin, loads what its rank holds, and runs the scheduler's plans until the
scheduler closes the channel or dies. FD takes its last words, which is why it ended badly.
"""

import contextlib
import datetime
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import cast

import msgspec
import torch
import torch.distributed as dist
from tqdm import tqdm

from jit_kernels.registry import BackendUnavailable
from layers.models.json_fields import ConfigFault
from layers.models.registry import read_model
from layers.parallel.cuda_ranks import CudaRanks
from layers.parallel.ranks import HostRanks, Ranks
from layers.parallel.shares import AttentionShares, Shares, UnevenShares
from layers.weights.checkpoint import WeightError
from runtime.child import (
    CONFIG_EXIT_CODE,
    configure_logging,
    die_with_parent,
    exit_with,
    write_stacks_on_signal,
)
from runtime.collector import calm_collector
from runtime.config import ServerConfig
from runtime.errors import ConfigError, MemoryShortage
from runtime.executor.device_choice import choose_device
from runtime.executor.device_memory import is_out_of_memory
from runtime.executor.interface import RankExecutor
from runtime.executor.loading import load_model
from runtime.executor.step_profiler import RankStepProfiler
from runtime.executor.trace_folder import TraceFolder
from runtime.executor.worker import serve
from runtime.heap import keep_freed_memory
from runtime.wire.channel import ExecutorChannel, RankAddress
from runtime.wire.rank_line import RankLineWriter

__all__ = ["PEER_EXIT_CODE", "SPIN_S", "RankTask", "attention_shares"]

logger = logging.getLogger("umbra.rank")

# The exit code of a rank that failed since another one was gone.
PEER_EXIT_CODE = 3
_BEAT_S = 0.5
# Ranks meet within this time: compiling and loading differ between them by less.
_MEETING_S = 3600.0
# How long a message is polled for before its reader sleeps, on hosts that compute on GPUs.
SPIN_S = 0.01
_OUT_OF_MEMORY = (
    "out of memory: lower --mem-fraction-static or --kv-cache-bytes, or "
    "--chunked-prefill-size and --max-running-requests, or end other processes on the device"
)
_ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}


class RankTask(msgspec.Struct, frozen=True):
    """What a rank is told.

    address  where the scheduler's queues are
    meeting  file by which ranks find each other
    lines    descriptor of what it writes beside the channel, twice a second at least
    """

    config: ServerConfig
    rank: int
    address: RankAddress
    meeting: str
    lines: int
    parent: int


def main(words: int) -> None:
    """Run the rank; tell the scheduler in one line why it ended badly."""
    os.set_inheritable(words, False)
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=RankTask)
    die_with_parent(task.parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    write_stacks_on_signal()
    level = task.config.log_level if task.rank == 0 else "warning"
    configure_logging(level, form=task.config.log_format, process=f"rank {task.rank}")
    # tqdm's own lock is a named semaphore, which a killed process would leave behind.
    tqdm.set_lock(threading.RLock())
    lines = RankLineWriter(task.lines)
    threading.Thread(target=_beat, args=(lines,), name="heartbeat", daemon=True).start()
    try:
        run(task, lines)
    except UnevenShares as fault:
        exit_with(words, f"--tp-size {task.config.tp_size}: {fault}", CONFIG_EXIT_CODE)
    except MemoryShortage as fault:
        exit_with(words, f"rank {task.rank}: {fault}", CONFIG_EXIT_CODE)
    except (ConfigError, ConfigFault, WeightError, BackendUnavailable) as fault:
        exit_with(words, str(fault), CONFIG_EXIT_CODE)
    except Exception as fault:
        logger.exception("rank %d failed", task.rank)
        exit_with(words, _told(fault), PEER_EXIT_CODE if _is_of_peer(fault) else 1)
    # Collectives of others may still be under way: nothing is tidied up.
    exit_with(words, "", 0)


def run(task: RankTask, lines: RankLineWriter) -> None:
    """Load, say what was loaded, and serve."""
    config = task.config
    assert config.model_path is not None
    folder = Path(config.model_path)
    keep_freed_memory()
    model = read_model(folder, config.override_config)
    device = choose_device(config, model, rank=task.rank)
    ranks = _joined(task, device)
    loaded = load_model(config, folder, model, ranks, device)
    channel = ExecutorChannel.attach(task.address, spin_s=SPIN_S if device.type == "cuda" else 0.0)
    traces = TraceFolder(config.profile_dir, rank=task.rank) if config.profile_dir else None
    # What a rank loads runs its part of a step, too.
    runner = cast(RankExecutor, loaded.runner)
    profiler = RankStepProfiler(runner, traces, say=lines.write)
    lines.tracing = lambda: profiler.busy
    for memory in loaded.told.memory:
        lines.write(memory)
    # Nobody serves before all have loaded.
    ranks.least(0)
    channel.send(loaded.told)
    calm_collector()
    serve(profiler, channel, profiler, rank=task.rank)
    profiler.close()


def attention_shares(config: ServerConfig) -> AttentionShares:
    """Return how ranks share attention: with as many replicas as ranks, each has its own rows."""
    return "data" if config.replicas > 1 else "tensor"


def _joined(task: RankTask, device: torch.device) -> Ranks:
    """Return this rank among the others, once all are there."""
    world = task.config.tp_size
    shares = Shares(task.rank, world, attention_shares(task.config))
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.set_device(device)
    # NVLink multicast stays off; ranks are on one host, and need no network.
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    dist.init_process_group(
        "nccl" if on_cuda else "gloo",
        init_method=f"file://{task.meeting}",
        rank=task.rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=_MEETING_S),
        device_id=device if on_cuda else None,
    )
    if on_cuda:
        return CudaRanks(shares, device, limit_s=task.config.watchdog_timeout)
    return HostRanks(shares)


def _beat(lines: RankLineWriter) -> None:
    """Write a line twice a second, until nobody reads."""
    with contextlib.suppress(OSError):
        while True:
            lines.write()
            time.sleep(_BEAT_S)


def _told(fault: Exception) -> str:
    """Return the last words for a fault, with advice where memory ran out."""
    text = f"{type(fault).__name__}: {fault}"
    return f"{_OUT_OF_MEMORY}: {text}" if is_out_of_memory(fault) else text


def _is_of_peer(fault: Exception) -> bool:
    """Say whether an exchange failed: gloo has no error of its own."""
    marks = ("gloo", "NCCL", "Connection closed by peer")
    failed = isinstance(fault, dist.DistError) or any(mark in str(fault) for mark in marks)
    return failed and not is_out_of_memory(fault)


if __name__ == "__main__":
    main(int(sys.argv[1]))
