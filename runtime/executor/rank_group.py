"""The ranks of a network, as the scheduler starts, watches and ends them."""

import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from msgspec.structs import replace

from runtime.child import CONFIG_EXIT_CODE, write_stacks_of_group
from runtime.config import ServerConfig
from runtime.errors import ConfigError, WorkerDied
from runtime.executor.joint_executors import RemoteJointExecutor
from runtime.executor.loaded_model import LoadedModel
from runtime.executor.rank_child import RankChild
from runtime.executor.rank_process import SPIN_S, attention_shares
from runtime.executor.remote import RemoteExecutor
from runtime.profile_messages import Profiled
from runtime.wire.channel import ExecutorFault, SchedulerChannel
from runtime.wire.loaded import Loaded
from runtime.wire.queue import PeerDied

__all__ = ["RankGroup", "start_ranks"]

logger = logging.getLogger("umbra.scheduler")

# Longest silence of a rank: its heart beats twice a second, whatever its other threads do.
_SILENCE_S = 3.5
# The same while it loads: importing from a slow disk comes before the first beat.
_LOADING_SILENCE_S = 300.0
_LOOK_S = 0.2
# When one rank is lost, others fail over it: how long the one is looked for.
_LOST_S = 0.5


class RankGroup:
    """All ranks. When one dies or is silent, all are killed, and so is this process.

    world      how many there are
    answering  how many of them send results, the first ones: all that have rows of their own
    """

    def __init__(self, config: ServerConfig, folder: str) -> None:
        """Start them.

        folder  private directory for sockets and for the file by which ranks meet
        """
        self.world = config.tp_size
        self.answering = self.world if attention_shares(config) == "data" else 1
        self._why: str | None = None
        self._has_loaded = False
        # The profiler of torch holds up all threads of a rank.
        self._tracing_silence_s = max(_SILENCE_S, config.watchdog_timeout)
        self._hear: Callable[[int, Profiled], None] = lambda rank, answer: None
        self._awaits: Callable[[], bool] = lambda: False
        on_cuda = config.device != "cpu" and torch.cuda.is_available()
        self.channel = SchedulerChannel.create(
            ranks=config.tp_size,
            folder=folder,
            answering=self.answering,
            spin_s=SPIN_S if on_cuda else 0.0,
        )
        meeting = str(Path(folder) / "ranks")
        self._ranks = [
            RankChild(rank, config, address, meeting)
            for rank, address in enumerate(self.channel.addresses)
        ]

    def loaded(self) -> Loaded:
        """Wait until all have loaded. Raises ConfigError with a rank's words, or WorkerDied."""
        try:
            self._accept()
            told, *_ = [self._first_message(rank) for rank in range(self.answering)]
            self._has_loaded = True
            # Each rank said what it holds before any was ready.
            for rank in self._ranks:
                rank.hear()
            known = [rank.memory for rank in self._ranks if rank.memory is not None]
            return replace(told, memory=known)
        except PeerDied as fault:
            # The rank that died may not be reaped yet.
            time.sleep(_LOOK_S)
            self._check()
            raise WorkerDied(str(fault)) from fault
        finally:
            if not self._has_loaded:
                self.kill()

    def _accept(self) -> None:
        while True:
            self._check()
            try:
                self.channel.accept(_LOOK_S)
                return
            except TimeoutError:
                continue

    def _first_message(self, rank: int) -> Loaded:
        while True:
            self._check()
            message = self.channel.receive(_LOOK_S, rank=rank)
            if isinstance(message, Loaded):
                return message
            if isinstance(message, ExecutorFault):
                raise WorkerDied(message.message)

    @property
    def tracing(self) -> bool:
        """Whether a rank traces steps, or was asked to and has not answered."""
        return self._awaits() or any(rank.tracing for rank in self._ranks)

    def listen(self, hear: Callable[[int, Profiled], None], awaits: Callable[[], bool]) -> None:
        """Have `hear` called with a rank and its answer; `awaits` tells whether one is missing."""
        self._hear, self._awaits = hear, awaits

    def why_lost(self) -> str | None:
        """Return which rank was lost first, and how; None where none is within a moment."""
        ends = time.monotonic() + _LOST_S
        while self._why is None and time.monotonic() < ends:
            lost = self._lost()
            if lost is not None:
                self._why = lost.how_it_ended()
            else:
                time.sleep(_LOST_S / 10)
        return self._why

    def watch(self) -> None:
        """Have a thread end this process, and all ranks, when one is gone or silent."""
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def kill(self) -> None:
        """End all ranks, stopped ones too."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(1.0)

    def _watch(self) -> None:
        while True:
            lost = self._lost()
            if lost is not None:
                self._why = self._why or lost.how_it_ended()
                logger.error("%s", self._why)
                if lost.process.poll() is None:
                    write_stacks_of_group(os.getpgrp())
                self.kill()
                # The scheduler says so to clients, if it is not stuck.
                time.sleep(_LOST_S)
                os._exit(1)
            time.sleep(_LOOK_S)

    def _lost(self, silence_s: float | None = None) -> RankChild | None:
        """Return a rank that has ended or is silent; one that others failed over comes first.

        silence_s  its longest silence; None: of one that serves
        """
        if silence_s is None:
            silence_s = self._tracing_silence_s if self.tracing else _SILENCE_S
        for rank in self._ranks:
            for answer in rank.hear():
                self._hear(rank.rank, answer)
        if any(rank.lost_a_peer for rank in self._ranks):
            # The one that was lost first may not be reaped yet.
            time.sleep(_LOOK_S)
        lost = [rank for rank in self._ranks if rank.is_lost(silence_s)]
        return min(lost, key=lambda rank: rank.lost_a_peer, default=None)

    def _check(self) -> None:
        """Raise what a rank ended for, or that it is silent, while they load."""
        lost = self._lost(_LOADING_SILENCE_S)
        for rank in self._ranks:
            code = rank.process.poll()
            if code == CONFIG_EXIT_CODE:
                raise ConfigError(rank.last_words())
        if lost is not None:
            raise WorkerDied(lost.how_it_ended())


def start_ranks(config: ServerConfig, folder: str) -> LoadedModel:
    """Start the ranks of a network and wait until they have loaded it.

    Raises ConfigError for what cannot be served, WorkerDied when a rank ends.
    """
    group = RankGroup(config, folder)
    told = group.loaded()
    group.watch()
    if group.answering == 1:
        return LoadedModel(RemoteExecutor(group.channel, group), told)
    joint = RemoteJointExecutor(group.channel, group.world, group)
    return LoadedModel(joint.replicas[0], told, joint)
