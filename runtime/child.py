"""What processes that a server starts have in common: their log, their end, their parent's."""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import time

from runtime.json_log import LogFormat, log_json

__all__ = [
    "CONFIG_EXIT_CODE",
    "EXIT_WORDS_BYTES",
    "configure_logging",
    "die_with_parent",
    "exit_with",
]

# The exit code for flags or a checkpoint that cannot be served.
CONFIG_EXIT_CODE = 2
EXIT_WORDS_BYTES = 4000
_PARENT_POLL_S = 0.5
_PR_SET_PDEATHSIG = 1


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
