"""The event loop of one engine, in a thread of its own, and the scheduler process it speaks to.

Callers are elsewhere: in other threads, in other event loops, several at a time. What they want
done is run in this loop; they wait for a future.
"""

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from runtime.config import ServerConfig
from runtime.errors import Unavailable
from runtime.ipc import ManagerSocket, private_addresses
from runtime.scheduler_process import SchedulerProcess
from runtime.server.service import Service
from runtime.supervision import SCHEDULER_EXIT_S, bring_up, watch
from runtime.tokenizer.manager import TokenizerManager

logger = logging.getLogger("umbra.engine")

# After the last request was ended: time for its reader to hear of it.
_LAST_WORDS_S = 1.0
# An interrupt that comes just before a thread begins to wait does not wake it.
_LOOK_UP_S = 0.5

Result = TypeVar("Result")


class EngineThread:
    """One engine's thread. Nothing here is shared with another engine."""

    def __init__(self, config: ServerConfig, scheduler_main: str) -> None:
        self._config = config
        self._main = scheduler_main
        self._pid = os.getpid()
        # Reentrant: the garbage collector may end an engine, and call in, at any point.
        self._lock = threading.RLock()
        self._closed = False
        self._ending: Future[None] | None = None
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        # From here on, of the loop.
        self._own: set[asyncio.Task[Any] | None] = set()
        self._stack = AsyncExitStack()
        self._streams: set[object] = set()
        self._all_read = asyncio.Event()
        self._all_read.set()
        self._drain_s = 0.0
        self._unwanted = asyncio.Event()
        self._over = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name="umbra-engine", daemon=True
        )

    def start(self) -> Service:
        """Start the scheduler; when it is ready return the engine's parts, for this loop only.

        Raises ConfigError for what it cannot serve, WorkerDied where it ends otherwise.
        """
        self._thread.start()
        self._begun.wait()
        atexit.register(self.stop)
        try:
            return self.wait(self.submit(self._bring_up))
        except BaseException:
            self.stop()
            raise

    def submit(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> "Future[Result]":
        """Run a coroutine in the loop; cancelling the future cancels it.

        Raises Unavailable once the engine is shut down.
        """
        with self._lock:
            if self._closed:
                raise _is_shut_down()
            if os.getpid() != self._pid:
                raise Unavailable("the engine belongs to the process that forked this one")
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def tell(self, work: Callable[[], object]) -> None:
        """Call `work` in the loop, soon; never where the engine is shut down."""
        with self._lock:
            if not self._closed and os.getpid() == self._pid:
                self._loop.call_soon_threadsafe(work)

    def wait(self, future: "Future[Result]") -> Result:
        """Return a future's result; whatever ends the waiting ends the work.

        Raises what the work raises, Unavailable where a shutdown cut it off, and RuntimeError in
        the engine's own thread.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("the engine's own thread cannot wait for itself")
        main = threading.current_thread() is threading.main_thread()
        try:
            while not future.done():
                futures.wait([future], timeout=_LOOK_UP_S if main else None)
            return future.result()
        except CancelledError:
            raise _is_shut_down() from None
        finally:
            future.cancel()

    async def arrival(self, future: "Future[Result]") -> Result:
        """Return a future's result in any event loop; being cancelled ends the work.

        Raises what the work raises, and Unavailable where a shutdown cut it off.
        """
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _is_shut_down() from None

    def stop(self, drain_s: float = 0.0, *, wait: bool = True) -> None:
        """End the engine, once.

        Requests that run have `drain_s` to finish, and streams to be read; then they are ended.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._ending is None:
                work = self._shut_down(drain_s)
                self._ending = asyncio.run_coroutine_threadsafe(work, self._loop)
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()
            self._ending.result()

    # --- in the loop

    def opened(self, stream: object) -> None:
        """Count `stream` among those that somebody reads."""
        self._streams.add(stream)
        self._all_read.clear()

    def ended(self, stream: object) -> None:
        """Nothing more is read from `stream`; may be said again."""
        self._streams.discard(stream)
        if not self._streams:
            self._all_read.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._own = {asyncio.current_task()}
        self._begun.set()
        await self._over.wait()

    async def _bring_up(self) -> Service:
        async with AsyncExitStack() as stack:
            addresses = stack.enter_context(private_addresses())
            messages = ManagerSocket(addresses)
            stack.callback(messages.close)
            process = SchedulerProcess(self._main, self._config, addresses)
            stack.callback(process.kill)
            process.start()
            manager = await bring_up(self._config, messages, process, self._unwanted)
            if manager is None:
                raise _is_shut_down()
            stack.push_async_callback(process.wait, SCHEDULER_EXIT_S)
            stack.callback(manager.close)
            service = Service.make(manager, self._config, trusted=True)
            supervising = asyncio.create_task(self._supervise(manager, process))
            stack.push_async_callback(_cancelled, supervising)
            stack.push_async_callback(self._let_end, service)
            self._stack = stack.pop_all()
        return service

    async def _shut_down(self, drain_s: float) -> None:
        self._own.add(asyncio.current_task())
        self._drain_s = drain_s
        self._unwanted.set()
        try:
            await self._stack.aclose()
        finally:
            with self._lock:
                self._closed = True
            atexit.unregister(self.stop)
            self._over.set()

    async def _let_end(self, service: Service) -> None:
        """Let requests finish, or end them; and let their readers hear of it."""
        until_s = self._loop.time() + self._drain_s
        if service.next_turn is not None:
            await service.next_turn.stop()
        await service.manager.drain(self._drain_s)
        # Between two reads a stream has no task: a slow reader may have the rest of the time.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._all_read.wait()
        if reading := asyncio.all_tasks() - self._own:
            await asyncio.wait(reading, timeout=_LAST_WORDS_S)

    async def _supervise(self, manager: TokenizerManager, process: SchedulerProcess) -> None:
        """Take in the scheduler's messages; once it is dead or hung, fail every call."""
        self._own.add(asyncio.current_task())
        receiving = asyncio.create_task(manager.run())
        watching = asyncio.create_task(watch(manager, process))
        self._own |= {receiving, watching}
        try:
            await asyncio.wait([receiving, watching], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                reason = watching.result()
            else:
                reason = f"the message loop failed: {receiving.exception()}"
            logger.error("the engine died: %s", reason)
            manager.engine_died(reason)
            process.kill()
        finally:
            await _cancelled(receiving)
            await _cancelled(watching)


async def _cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _is_shut_down() -> Unavailable:
    return Unavailable("the engine is shut down")
