"""What each rank writes to the scheduler beside the channel: its beats, and what is its own.

Over the channel rank 0 alone answers, since all ranks compute the same. A pipe for each rank takes
what they do not share: that it lives, what its memory holds, what became of its trace. A message
is a line of JSON.
"""

import contextlib
import os
import threading
from collections.abc import Callable

import msgspec

from runtime.profile_messages import Profiled
from runtime.rank_memory import RankMemory

__all__ = ["RankLine", "RankLineReader", "RankLineWriter", "RankNote"]

RankNote = RankMemory | Profiled
_READ_BYTES = 1 << 16


class RankLine(msgspec.Struct, frozen=True, array_like=True):
    """One line.

    tracing  a profile runs or is being written: the rank may be silent for that
    note     None in a mere beat
    """

    tracing: bool = False
    note: RankNote | None = None


class RankLineWriter:
    """A rank's end; lines may be written by any thread.

    tracing  tells what the lines say of it
    """

    def __init__(self, descriptor: int) -> None:
        """Write to the descriptor of a pipe."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self.tracing: Callable[[], bool] = lambda: False

    def write(self, note: RankNote | None = None) -> None:
        """Write a beat, with a note where there is one. Raises OSError where nobody reads."""
        data = msgspec.json.encode(RankLine(self.tracing(), note)) + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


class RankLineReader:
    """The scheduler's end; lines may be read by any thread."""

    def __init__(self, descriptor: int) -> None:
        """Take over the descriptor of a pipe."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._rest = b""
        self._decoder = msgspec.json.Decoder(RankLine)

    def read(self) -> list[RankLine]:
        """Return the lines that have come since; waits for none."""
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                while data := os.read(self._descriptor, _READ_BYTES):
                    self._rest += data
            *lines, self._rest = self._rest.split(b"\n")
        return [self._decoder.decode(line) for line in lines]

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)
