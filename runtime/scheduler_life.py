"""A server's scheduler from start to end, and its restart after a fault: `--restart-scheduler`.

The process of the API lives on. Requests that ran get 503 with Retry-After, and so do new ones
until another scheduler is ready, whose cache is empty. A scheduler that dies too often ends the
server, since another start would not help.
"""

import asyncio
import contextlib
import logging
import math
from collections import deque
from typing import Self

from runtime.config import ServerConfig
from runtime.errors import ConfigError, WorkerDied
from runtime.ipc import ManagerSocket, private_addresses
from runtime.messages import Ready
from runtime.scheduler_process import SchedulerProcess
from runtime.supervision import wait_ready, watch
from runtime.tokenizer.manager import TokenizerManager

__all__ = ["RESTART_WINDOW_S", "Restarts", "SchedulerLife"]

logger = logging.getLogger("umbra.launch")

RESTART_WINDOW_S = 600.0
# What a dead scheduler held, a GPU's memory too, is free once its ranks are gone.
_GONE_S = 10.0


class Restarts:
    """Counts restarts of a scheduler, and limits them.

    most  starts in any `RESTART_WINDOW_S`
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: deque[float] = deque()
        self.count = 0

    def take(self, now_s: float) -> bool:
        """Count a restart; return whether it is allowed."""
        while self._times and now_s - self._times[0] >= RESTART_WINDOW_S:
            self._times.popleft()
        if len(self._times) >= self._most:
            return False
        self._times.append(now_s)
        self.count += 1
        return True


class SchedulerLife:
    """The scheduler's process with the sockets to it; a restart replaces both.

    process, messages  of the scheduler that runs now
    restarts           how often another one may be started
    """

    process: SchedulerProcess
    messages: ManagerSocket

    def __init__(self, main: str, config: ServerConfig) -> None:
        """Prepare a scheduler whose main function is `main`; `start` starts it."""
        self._main = main
        self._config = config
        self._resources = contextlib.ExitStack()
        self._start_s = 0.0
        self._started_s = 0.0
        self.restarts = Restarts(config.restart_scheduler)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Start a process, with sockets of its own. Raises RuntimeFault."""
        addresses = self._resources.enter_context(private_addresses())
        self.messages = ManagerSocket(addresses)
        self._resources.callback(self.messages.close)
        self.process = SchedulerProcess(self._main, self._config, addresses)
        self._resources.callback(self.process.kill)
        self._started_s = asyncio.get_running_loop().time()
        self.process.start()

    def is_ready(self) -> None:
        """Note that the process is ready: another one will take as long."""
        self._start_s = asyncio.get_running_loop().time() - self._started_s

    def end(self) -> None:
        """Kill the process, and remove its sockets."""
        self._resources.close()

    async def watch(self, manager: TokenizerManager) -> str:
        """Keep `manager` connected to a scheduler; return why there is none any more."""
        while True:
            reason = await _until_dead(manager, self.process)
            while self.restarts.take(manager.clock()):
                logger.error("the engine died: %s; another scheduler is started", reason)
                retry_after_s = max(1, math.ceil(self._start_s))
                manager.engine_died(reason, retry_after_s=retry_after_s)
                try:
                    ready = await self._start_again()
                except (ConfigError, WorkerDied) as fault:
                    reason = str(fault)
                    continue
                manager.revive(self.messages, ready)
                logger.info("the scheduler was started again, with an empty cache")
                break
            else:
                return reason

    async def _start_again(self) -> Ready:
        """Start another process, once nothing is left of the last one; return its first message.

        Raises ConfigError and WorkerDied.
        """
        last = self.process
        self.end()
        if not await last.all_gone(_GONE_S):
            logger.warning("processes of the last scheduler are still there")
        self.start()
        ready = await wait_ready(self.messages, self.process)
        assert ready is not None, "nobody can say that it is no longer wanted"
        self.is_ready()
        return ready


async def _until_dead(manager: TokenizerManager, process: SchedulerProcess) -> str:
    """Hand the scheduler's messages to `manager`; return why there are no more."""
    receiving = asyncio.create_task(manager.run())
    watching = asyncio.create_task(watch(manager, process))
    try:
        await asyncio.wait([receiving, watching], return_when=asyncio.FIRST_COMPLETED)
        return watching.result() if watching.done() else _failure(receiving)
    finally:
        receiving.cancel()
        watching.cancel()
        await asyncio.gather(receiving, watching, return_exceptions=True)


def _failure(task: asyncio.Task[None]) -> str:
    fault = task.exception()
    logger.error("the message loop failed", exc_info=fault)
    return f"the message loop failed: {fault}"
