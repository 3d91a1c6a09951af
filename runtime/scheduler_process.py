"""The scheduler as a child process: start it, hear how it ended, tell when it hangs, kill it.

The child ignores SIGINT and SIGTERM, which a terminal or a service manager sends to every
process of the server: when to stop is for the API process to say. It dies with its parent.
"""

import asyncio
import contextlib
import importlib
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec
from tqdm import tqdm

from runtime.child import (
    CONFIG_EXIT_CODE,
    EXIT_WORDS_BYTES,
    configure_logging,
    die_with_parent,
    exit_with,
    write_stacks_of_group,
    write_stacks_on_signal,
)
from runtime.collector import paused_collector
from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.ipc import Addresses
from runtime.messages import State

logger = logging.getLogger("umbra.launch")

HEARTBEAT_TIMEOUT_S = 3.5
_KILL_S = 1.0
_LOOK_S = 0.05
_LEFT_TO_THE_PARENT = (signal.SIGINT, signal.SIGTERM)


def verdict(state: State | None, *, silence_s: float, step_limit_s: float) -> str | None:
    """Return why the scheduler counts as hung, or None.

    state      its latest heartbeat, None before the first
    silence_s  time since then
    """
    limit_s = HEARTBEAT_TIMEOUT_S
    if state is not None and state.profiling:
        limit_s = max(limit_s, step_limit_s)  # the profiler holds up all threads
    if silence_s > limit_s:
        return f"the scheduler has not been heard of for {silence_s:.1f} s"
    if state is None:
        return None
    if state.loop_age_s > limit_s:
        return f"the scheduler's loop has been stuck for {state.loop_age_s:.1f} s"
    if state.step_age_s > step_limit_s:
        return f"a forward pass has taken more than {step_limit_s:g} s (--watchdog-timeout)"
    return None


class _Task(msgspec.Struct, frozen=True):
    """What the child is told: its main function, what to give it, and whose child it is."""

    main: str
    config: ServerConfig
    to_scheduler: str
    from_scheduler: str
    parent: int


class SchedulerProcess:
    """One scheduler in a fresh interpreter; its main function is named "module:function".

    The child imports what it needs and nothing of the parent's main module, so that a script
    needs no guard around its own code.
    """

    def __init__(self, main: str, config: ServerConfig, addresses: Addresses) -> None:
        to_scheduler, from_scheduler = addresses.to_scheduler, addresses.from_scheduler
        self._task = _Task(main, config, to_scheduler, from_scheduler, os.getpid())
        self._process: subprocess.Popen[bytes] | None = None
        # The child's last words; at its end, and no sooner, the pipe is closed.
        self._report: io.FileIO | None = None
        self._words = b""
        self.exited = asyncio.Event()

    def start(self) -> None:
        """Start the process, which does not outlive the calling thread (on Linux)."""
        read_end, write_end = os.pipe()
        self._report = io.FileIO(read_end)
        # Blocked until the child ignores them: a terminal's SIGINT comes at any time.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_THE_PARENT)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "runtime.scheduler_process", str(write_end)],
                stdin=subprocess.PIPE,
                pass_fds=[write_end],
                # A group of its own, of which its ranks and grammar processes are.
                process_group=0,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(write_end)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(msgspec.json.encode(self._task))
        asyncio.get_running_loop().add_reader(self._report, self._on_report)

    @property
    def pid(self) -> int:
        """Process id. Only after `start`."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def last_words(self) -> str:
        """Return the error that ended the process, in its own words, or ""."""
        return self._words.decode(errors="replace")

    def how_it_ended(self) -> str:
        """Return a phrase such as "was killed by SIGKILL" or "exited with code 1: ..."."""
        code = self.exit_code
        if code is None:
            return "is running"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
            return f"was killed by signal {-code}"
        words = self.last_words()
        return f"exited with code {code}" + (f": {words}" if words else "")

    def dump_stacks(self) -> None:
        """Write the stacks of all threads of all processes to stderr, as far as they still can."""
        if self.exit_code is None:
            write_stacks_of_group(self.pid)

    def kill(self) -> None:
        """End the process whatever state it is in, a stopped one too, and reap it."""
        if self._process is None or self._report is None or self._report.closed:
            return
        asyncio.get_running_loop().remove_reader(self._report)
        self._report.close()
        self._process.kill()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # A process inside a driver call may outlive even SIGKILL for a while.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_S)
            self.exited.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the process to end; return whether it did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.exited.wait()
        return self.exited.is_set()

    async def all_gone(self, timeout_s: float) -> bool:
        """Wait for the end of all processes that a killed one had started; return whether it is."""
        assert self._process is not None
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            try:
                os.killpg(self._process.pid, 0)
            except (ProcessLookupError, PermissionError):
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    def _on_report(self) -> None:
        assert self._process is not None
        assert self._report is not None
        if words := self._report.read(EXIT_WORDS_BYTES):
            self._words += words
            return
        asyncio.get_running_loop().remove_reader(self._report)
        self._process.wait()
        self.exited.set()


# --- the child's side


def _child_main(report: int) -> None:
    """Run the scheduler's main function; tell the parent in one line why it ended badly."""
    os.set_inheritable(report, False)
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)
    die_with_parent(task.parent)
    for number in _LEFT_TO_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEFT_TO_THE_PARENT)
    write_stacks_on_signal()
    configure_logging(task.config.log_level, form=task.config.log_format, process="scheduler")
    # tqdm's own lock is a named semaphore, which a killed process would leave behind.
    tqdm.set_lock(threading.RLock())
    try:
        _load(task.main)(task.config, Addresses(task.to_scheduler, task.from_scheduler))
    except ConfigError as fault:
        exit_with(report, str(fault), CONFIG_EXIT_CODE)
    except Exception as fault:
        logger.exception("the scheduler failed")
        exit_with(report, f"{type(fault).__name__}: {fault}", 1)


def _load(main: str) -> Callable[[ServerConfig, Addresses], None]:
    module, _, function = main.partition(":")
    with paused_collector():
        return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    _child_main(int(sys.argv[1]))
