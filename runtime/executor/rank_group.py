"""The ranks of a network, as the scheduler starts, watches and ends them."""

import contextlib
import io
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import torch

from runtime.child import CONFIG_EXIT_CODE, EXIT_WORDS_BYTES
from runtime.config import ServerConfig
from runtime.errors import ConfigError, WorkerDied
from runtime.executor.loaded_model import LoadedModel
from runtime.executor.rank_process import SPIN_S, RankTask
from runtime.executor.remote import RemoteExecutor
from runtime.wire.channel import ExecutorFault, RankAddress, SchedulerChannel
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
# How long an ended rank's last words are waited for.
_WORDS_S = 1.0


class _Rank:
    """One process, its heart, and its last words."""

    def __init__(self, rank: int, config: ServerConfig, address: RankAddress, meeting: str) -> None:
        """Start it."""
        self.rank = rank
        words, say_words = os.pipe()
        beats, say_beats = os.pipe()
        self.beats, self._words = io.FileIO(beats), io.FileIO(words)
        os.set_blocking(beats, False)
        task = RankTask(config, rank, address, meeting, say_beats, os.getpid())
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "runtime.executor.rank_process", str(say_words)],
                stdin=subprocess.PIPE,
                pass_fds=[say_words, say_beats],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        finally:
            os.close(say_words)
            os.close(say_beats)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(msgspec.json.encode(task))
        self.heard_s = time.monotonic()

    def hear(self) -> None:
        """Take the beats that have come."""
        with contextlib.suppress(BlockingIOError):
            if self.beats.read(4096):
                self.heard_s = time.monotonic()

    def last_words(self) -> str:
        """Return why it ended, in its own words, or ""."""
        readable, _, _ = select.select([self._words], [], [], _WORDS_S)
        words = self._words.read(EXIT_WORDS_BYTES) if readable else b""
        return (words or b"").decode(errors="replace")

    def how_it_ended(self) -> str:
        """Return a phrase such as "rank 1 was killed by SIGKILL"."""
        code = self.process.poll()
        if code is None:
            silence_s = time.monotonic() - self.heard_s
            return f"rank {self.rank} has not been heard of for {silence_s:.1f} s"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"rank {self.rank} was killed by {signal.Signals(-code).name}"
        words = self.last_words()
        return f"rank {self.rank} exited with code {code}" + (f": {words}" if words else "")


class RankGroup:
    """All ranks. When one dies or is silent, all are killed, and so is this process."""

    def __init__(self, config: ServerConfig, folder: str) -> None:
        """Start them.

        folder  private directory for sockets and for the file by which ranks meet
        """
        self._why: str | None = None
        self._has_loaded = False
        on_cuda = config.device != "cpu" and torch.cuda.is_available()
        self.channel = SchedulerChannel.create(
            ranks=config.tp_size, folder=folder, spin_s=SPIN_S if on_cuda else 0.0
        )
        meeting = str(Path(folder) / "ranks")
        self._ranks = [
            _Rank(rank, config, address, meeting)
            for rank, address in enumerate(self.channel.addresses)
        ]

    def loaded(self) -> Loaded:
        """Wait until all have loaded. Raises ConfigError with a rank's words, or WorkerDied."""
        try:
            told = self._first_message()
            self._has_loaded = True
            return told
        except PeerDied as fault:
            # The rank that died may not be reaped yet.
            time.sleep(_LOOK_S)
            self._check()
            raise WorkerDied(str(fault)) from fault
        finally:
            if not self._has_loaded:
                self.kill()

    def _first_message(self) -> Loaded:
        while True:
            self._check()
            try:
                self.channel.accept(_LOOK_S)
                break
            except TimeoutError:
                continue
        while True:
            self._check()
            message = self.channel.receive(_LOOK_S)
            if isinstance(message, Loaded):
                return message
            if isinstance(message, ExecutorFault):
                raise WorkerDied(message.message)

    def why_lost(self) -> str | None:
        """Return which rank was lost first, and how; None where none is within a moment."""
        ends = time.monotonic() + _LOST_S
        while self._why is None and time.monotonic() < ends:
            lost = self._lost(_SILENCE_S)
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
            lost = self._lost(_SILENCE_S)
            if lost is not None:
                self._why = self._why or lost.how_it_ended()
                logger.error("%s", self._why)
                self.kill()
                # The scheduler says so to clients, if it is not stuck.
                time.sleep(_LOST_S)
                os._exit(1)
            time.sleep(_LOOK_S)

    def _lost(self, silence_s: float) -> _Rank | None:
        """Return a rank that has ended, or whose heart has not beaten for so long."""
        for rank in self._ranks:
            rank.hear()
            silent = time.monotonic() - rank.heard_s > silence_s
            if rank.process.poll() is not None or silent:
                return rank
        return None

    def _check(self) -> None:
        """Raise what a rank ended for, or that it is silent, while they load."""
        for rank in self._ranks:
            code = rank.process.poll()
            if code == CONFIG_EXIT_CODE:
                raise ConfigError(rank.last_words())
        lost = self._lost(_LOADING_SILENCE_S)
        if lost is not None:
            raise WorkerDied(lost.how_it_ended())


def start_ranks(config: ServerConfig, folder: str) -> LoadedModel:
    """Start the ranks of a network and wait until they have loaded it.

    Raises ConfigError for what cannot be served, WorkerDied when a rank ends.
    """
    group = RankGroup(config, folder)
    told = group.loaded()
    group.watch()
    return LoadedModel(RemoteExecutor(group.channel, group.why_lost), told)
