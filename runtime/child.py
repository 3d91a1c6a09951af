"""What processes that a server starts have in common: log, stacks, their end, their parent's."""

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from runtime.json_log import LogFormat, log_json

__all__ = [
    "CONFIG_EXIT_CODE",
    "EXIT_WORDS_BYTES",
    "configure_logging",
    "die_with_parent",
    "exit_with",
    "write_stacks_of_group",
    "write_stacks_on_signal",
]

logger = logging.getLogger("umbra.child")

# The exit code for flags or a checkpoint that cannot be served.
CONFIG_EXIT_CODE = 2
EXIT_WORDS_BYTES = 4000
_PARENT_POLL_S = 0.5
_PR_SET_PDEATHSIG = 1
_STDERR = 2
# For a process to write its stacks, before the next one writes its own.
_WRITE_S = 0.05


def configure_logging(level: str, *, form: LogFormat = "text", process: str = "") -> None:
    """Log to stderr, from `level` on; libraries from warning on.

    process  the part of this process in the server, which lines of JSON tell
    """
    text = "[%(asctime)s] %(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, format=text, force=True)
    logging.getLogger("umbra").setLevel(level.upper())
    if form == "json":
        log_json(process)


def exit_with(words: int, text: str, code: int) -> None:
    """Write the last words to a pipe and end at once: a broken process may take long to tidy up."""
    with contextlib.suppress(OSError):
        os.write(words, text.encode(errors="replace")[:EXIT_WORDS_BYTES])
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def write_stacks_on_signal() -> None:
    """Have SIGUSR1, and a crash of the interpreter, write the stack of each thread to stderr."""
    faulthandler.enable(_STDERR)
    faulthandler.register(signal.SIGUSR1, _STDERR, all_threads=True)


def write_stacks_of_group(leader: int) -> None:
    """Have every process of a group write its stacks to stderr, as far as it still can.

    leader  process id of the group's first one

    Each is named before its stacks. One that does not know the signal would die of it, and is left
    out; so are all but the leader where there is no /proc.
    """
    logger.error("stacks of process %d, which asks for those of others", os.getpid())
    faulthandler.dump_traceback(_STDERR, all_threads=True)
    for pid, name in [*_writers(leader)] or [(leader, "the scheduler")]:
        logger.error("stacks of process %d: %s", pid, name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        time.sleep(_WRITE_S)


def _writers(group: int) -> Iterator[tuple[int, str]]:
    """Yield id and command of each process of a group that catches SIGUSR1."""
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        pid = int(folder.name)
        with contextlib.suppress(OSError, StopIteration, ValueError):
            if os.getpgid(pid) != group or pid == os.getpid():
                continue
            lines = (folder / "status").read_text().splitlines()
            caught = next(line for line in lines if line.startswith("SigCgt:"))
            if int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield pid, next((word for word in words if word.startswith("runtime.")), words[0])


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; elsewhere than on Linux, look."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True, name="parent").start()


def _watch_parent(parent: int) -> None:
    # Also covers a parent that died before the kernel was asked.
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
