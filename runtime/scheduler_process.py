"""The scheduler as a child process: start it, hear how it ended, tell when it hangs, kill it.

The child ignores SIGINT and SIGTERM, which a terminal or a service manager sends to every
process of the server: when to stop is for the API process to say. It dies with its parent.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec
from tqdm import tqdm

from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.ipc import Addresses
from runtime.messages import State

logger = logging.getLogger("umbra.launch")

HEARTBEAT_TIMEOUT_S = 3.5
CONFIG_EXIT_CODE = 2
_PARENT_POLL_S = 0.5
_KILL_S = 1.0
_REPORT_BYTES = 4000
_PR_SET_PDEATHSIG = 1


def configure_logging(level: str) -> None:
    """Log to stderr, from `level` on; libraries from warning on."""
    form = "[%(asctime)s] %(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, force=True)
    logging.getLogger("umbra").setLevel(level.upper())


def verdict(state: State | None, *, silence_s: float, step_limit_s: float) -> str | None:
    """Return why the scheduler counts as hung, or None.

    state      its latest heartbeat, None before the first
    silence_s  time since then
    """
    if silence_s > HEARTBEAT_TIMEOUT_S:
        return f"the scheduler has not been heard of for {silence_s:.1f} s"
    if state is None:
        return None
    if state.loop_age_s > HEARTBEAT_TIMEOUT_S:
        return f"the scheduler's loop has been stuck for {state.loop_age_s:.1f} s"
    if state.step_age_s > step_limit_s:
        return f"a forward pass has taken more than {step_limit_s:g} s (--watchdog-timeout)"
    return None


class SchedulerProcess:
    """One scheduler, spawned from nothing; its main function is named "module:function"."""

    def __init__(self, main: str, config: ServerConfig, addresses: Addresses) -> None:
        context = multiprocessing.get_context("spawn")
        self._report, report = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_child_main,
            name="umbra-scheduler",
            args=(
                main,
                msgspec.json.encode(config),
                (addresses.to_scheduler, addresses.from_scheduler),
                os.getpid(),
                report,
            ),
        )
        self._child_end = report
        self.exited = asyncio.Event()

    def start(self) -> None:
        """Start the process; call from the main thread, which the child is not to outlive."""
        self._process.start()
        self._child_end.close()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._on_exit)

    @property
    def pid(self) -> int:
        """Process id. Only after `start`."""
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def exit_code(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def last_words(self) -> str:
        """Return the error that ended the process, in its own words, or ""."""
        # Nothing to read, or nobody left to write.
        with contextlib.suppress(EOFError, OSError):
            if self._report.poll():
                return self._report.recv_bytes(_REPORT_BYTES).decode(errors="replace")
        return ""

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
        """Have a hung process print the stack of each of its threads, as far as it still can."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGUSR1)

    def kill(self) -> None:
        """End the process whatever state it is in, a stopped one too, and reap it."""
        if self._process.pid is None:
            return
        with contextlib.suppress(RuntimeError, ValueError):
            asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.kill()
        # A process inside a driver call may outlive even SIGKILL for a while.
        self._process.join(_KILL_S)
        self._report.close()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the process to end; return whether it did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.exited.wait()
        return self.exited.is_set()

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        self.exited.set()


# --- the child's side


def _child_main(
    main: str,
    config_json: bytes,
    addresses: tuple[str, str],
    parent: int,
    report: Connection,
) -> None:
    """Run the scheduler's main function; tell the parent in one line why it ended badly."""
    _die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    config = msgspec.json.decode(config_json, type=ServerConfig)
    configure_logging(config.log_level)
    # tqdm's own lock is a named semaphore, which a killed process would leave behind.
    tqdm.set_lock(threading.RLock())
    try:
        _load(main)(config, Addresses(*addresses))
    except ConfigError as fault:
        _exit_with(report, str(fault), CONFIG_EXIT_CODE)
    except Exception as fault:
        logger.exception("the scheduler failed")
        _exit_with(report, f"{type(fault).__name__}: {fault}", 1)


def _load(main: str) -> Callable[[ServerConfig, Addresses], None]:
    module, _, function = main.partition(":")
    return getattr(importlib.import_module(module), function)


def _exit_with(report: Connection, text: str, code: int) -> None:
    """Send the last words and end at once: a broken process may take seconds to tidy up."""
    with contextlib.suppress(OSError):
        report.send_bytes(text.encode(errors="replace")[:_REPORT_BYTES])
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; elsewhere than on Linux, look."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True, name="parent").start()


def _watch_parent(parent: int) -> None:
    # Also covers a parent that died before the kernel was asked.
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
