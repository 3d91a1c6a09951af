"""One rank as its scheduler has it: a process, the line it writes, and its last words."""

import contextlib
import io
import os
import select
import signal
import subprocess
import sys
import time

import msgspec

from runtime.child import EXIT_WORDS_BYTES
from runtime.config import ServerConfig
from runtime.executor.rank_process import PEER_EXIT_CODE, RankTask
from runtime.profile_messages import Profiled
from runtime.rank_memory import RankMemory
from runtime.wire.channel import RankAddress
from runtime.wire.rank_line import RankLineReader

__all__ = ["RankChild"]

MAIN = "runtime.executor.rank_process"
# How long an ended rank's last words are waited for.
_WORDS_S = 1.0


class RankChild:
    """A process that holds a share of the network.

    heard_s  when its line was heard of last, by the monotonic clock
    memory   what it said of its device's memory; None before it has loaded
    tracing  whether it said that it traces steps
    """

    def __init__(self, rank: int, config: ServerConfig, address: RankAddress, meeting: str) -> None:
        """Start it.

        meeting  file by which ranks find each other
        """
        self.rank = rank
        self.memory: RankMemory | None = None
        self.tracing = False
        self._said: str | None = None
        words, say_words = os.pipe()
        lines, write_lines = os.pipe()
        self._lines, self._words = RankLineReader(lines), io.FileIO(words)
        task = RankTask(config, rank, address, meeting, write_lines, os.getpid())
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", MAIN, str(say_words)],
                stdin=subprocess.PIPE,
                pass_fds=[say_words, write_lines],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        finally:
            os.close(say_words)
            os.close(write_lines)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(msgspec.json.encode(task))
        self.heard_s = time.monotonic()

    def hear(self) -> list[Profiled]:
        """Take the lines that have come; return the answers in them."""
        answers: list[Profiled] = []
        for line in self._lines.read():
            self.heard_s, self.tracing = time.monotonic(), line.tracing
            if isinstance(line.note, RankMemory):
                self.memory = line.note
            elif line.note is not None:
                answers.append(line.note)
        return answers

    def is_lost(self, silence_s: float) -> bool:
        """Say whether it has ended, or has not been heard of for so long."""
        silent = time.monotonic() - self.heard_s > silence_s
        return self.process.poll() is not None or silent

    @property
    def lost_a_peer(self) -> bool:
        """Whether it ended since another rank did."""
        return self.process.poll() == PEER_EXIT_CODE

    def last_words(self) -> str:
        """Return why it ended, in its own words, or ""."""
        said = self._said
        if said is None:
            readable, _, _ = select.select([self._words], [], [], _WORDS_S)
            words = self._words.read(EXIT_WORDS_BYTES) if readable else b""
            self._said = said = (words or b"").decode(errors="replace")
        return said

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

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        self._lines.close()
        self._words.close()
