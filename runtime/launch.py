"""Start the processes of a server, notice when one dies, and stop them all.

Exit codes: 0 asked to stop, 1 a fault (a dead or hung scheduler, a port in use), 2 flags or a
checkpoint that cannot be served, 130 told twice to stop.
"""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvicorn

from runtime.child import CONFIG_EXIT_CODE, configure_logging, write_stacks_on_signal
from runtime.collector import WITH_CONNECTIONS, calm_collector
from runtime.command_line import parse_args
from runtime.config import ServerConfig
from runtime.errors import ConfigError, RuntimeFault
from runtime.json_log import LogFormat
from runtime.open_files import Listener, file_limit, raise_file_limit, warn_of_few_files
from runtime.scheduler_life import SchedulerLife
from runtime.server.access_log import open_access_log
from runtime.server.arrival import protocol_class
from runtime.server.connection_metrics import ConnectionCollector
from runtime.server.metrics import Metrics
from runtime.server.open_connections import OpenConnections, most_connections
from runtime.server.process_metrics import ProcessCollector
from runtime.server.unread_replies import UnreadReplies
from runtime.supervision import SCHEDULER_EXIT_S, SCHEDULER_MAIN, bring_up, resolve
from runtime.tokenizer.manager import TokenizerManager

if TYPE_CHECKING:
    from fastapi import FastAPI

    from runtime.server.traces import Traces

logger = logging.getLogger("umbra.launch")

# Clients, OpenAI's and Anthropic's among them, keep idle connections for 5 s. Where the server
# closed first, a request could meet a connection that is being closed.
KEEP_IDLE_S = 75

# After a fault: time for the error replies to leave, and for the process to be gone.
_FAULT_REPLIES_S = 0.3
_FAULT_EXIT_S = 0.7
_GOODBYE_S = 2.0
# After a second interrupt: time to end the scheduler and to remove its sockets.
_QUIT_EXIT_S = 0.7


def serve(argv: list[str], *, scheduler_main: str = SCHEDULER_MAIN) -> int:
    """Run a server until it is told to stop; return the exit code.

    argv            command line without the program name
    scheduler_main  "module:function" that the scheduler process runs
    """
    form: LogFormat = "text"
    try:
        config = parse_args(argv)
        form = config.log_format
        configure_logging(config.log_level, form=form, process="api")
        write_stacks_on_signal()
        raise_file_limit()
        return asyncio.run(_serve(resolve(config), scheduler_main))
    except (ConfigError, RuntimeFault) as fault:
        if form == "json":
            logger.error("%s", fault)
        else:
            print(f"error: {fault}", file=sys.stderr)
        return CONFIG_EXIT_CODE if isinstance(fault, ConfigError) else 1


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, not yet accepting.

    Raises ConfigError for an address that is none, RuntimeFault for one that cannot be had.
    """
    # getaddrinfo would take 70000 for 4464.
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port must lie between 0 and 65535, got {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as fault:
        raise ConfigError(f"--host {host} --port {port}: {fault}") from fault
    family, kind, protocol, _, address = found[0]
    listener = Listener(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as fault:
        listener.close()
        raise _cannot_listen(host, port, fault) from fault
    return listener


def _cannot_listen(host: str, port: int, fault: OSError) -> RuntimeFault:
    return RuntimeFault(f"cannot listen on {host}:{port}: {fault.strerror}")


class _StopSignals:
    """SIGINT and SIGTERM, as events: the first asks to drain, a further one to quit at once."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.quit = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.drain.is_set():
            self.quit.set()
        self.drain.set()


class _WebServer(uvicorn.Server):
    """uvicorn that leaves the signals to the launcher."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: SIGINT and SIGTERM drain the engine first."""
        yield


async def _serve(config: ServerConfig, scheduler_main: str) -> int:
    signals = _StopSignals()
    listener = listen(config.host, config.port)
    with contextlib.closing(listener), SchedulerLife(scheduler_main, config) as life:
        life.start()
        # Imported while the scheduler loads its weights.
        from runtime.server.app import create_app

        manager = await bring_up(config, life.messages, life.process, signals.drain)
        if manager is None:
            return 0
        life.is_ready()
        warn_of_few_files(config.max_queued_requests + manager.rows)
        app = create_app(manager, config)
        calm_collector(WITH_CONNECTIONS)
        running = _Running(config, app, manager=manager, life=life, signals=signals)
        return await running.run(listener)


class _Running:
    """A server that is up: its web server, its watch over the scheduler, and its end."""

    def __init__(
        self,
        config: ServerConfig,
        app: "FastAPI",
        *,
        manager: TokenizerManager,
        life: SchedulerLife,
        signals: _StopSignals,
    ) -> None:
        self._config = config
        self._manager = manager
        self._life = life
        self._signals = signals
        self._traces: Traces | None = getattr(app.state, "traces", None)
        self._drained_by_s = 0.0
        self._connections = OpenConnections(most_connections(manager.room, file_limit()))
        self._unread = UnreadReplies()
        metrics: Metrics = app.state.service.metrics
        metrics.add(ConnectionCollector(metrics.model_name, self._connections, self._unread))
        pids = {"api": os.getpid, "scheduler": lambda: life.process.pid}
        metrics.add(ProcessCollector(metrics.model_name, pids))
        self._web = _WebServer(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                server_header=False,
                lifespan="off",
                # Whatever is installed: httptools takes headers of any size.
                http=protocol_class(self._connections, self._unread),
                ws="none",
                access_log=config.log_format == "text",
                timeout_keep_alive=KEEP_IDLE_S,
            )
        )
        open_access_log(
            config.log_level_http or config.log_level,
            leave_out=config.uvicorn_access_log_exclude_prefixes,
        )

    async def run(self, listener: socket.socket) -> int:
        """Serve until a fault or a signal; return the exit code."""
        living = asyncio.create_task(self._life.watch(self._manager))
        serving = asyncio.create_task(self._web.serve(sockets=[listener]))
        announcing = asyncio.create_task(self._announce(listener))
        draining = asyncio.create_task(self._drain())
        quitting = asyncio.create_task(self._signals.quit.wait())
        tasks = [living, serving, draining, quitting]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if quitting.done():
                return await self._quit(serving)
            if living.done():
                await self._fail(living.result(), serving)
                return 1
            if serving.done():
                fault = serving.exception()
                if isinstance(fault, OSError):
                    raise _cannot_listen(self._config.host, self._config.port, fault)
                raise RuntimeFault(f"the web server ended: {fault}")
            return await self._say_goodbye(serving, quitting)
        finally:
            for task in (*tasks, announcing):
                task.cancel()

    async def _announce(self, listener: socket.socket) -> None:
        while not self._web.started:
            await asyncio.sleep(0.01)
        host, port = listener.getsockname()[:2]
        logger.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        logger.info("The server is fired up and ready to roll!")

    async def _fail(self, reason: str, serving: asyncio.Task[None]) -> None:
        """Tell everybody that the engine is dead, and be gone soon, whatever still hangs."""
        _exit_within(_FAULT_EXIT_S, 1)
        logger.error("the engine died: %s", reason)
        self._manager.engine_died(reason)
        await asyncio.wait([serving], timeout=_FAULT_REPLIES_S)
        self._life.process.kill()
        self._web.should_exit = self._web.force_exit = True
        await asyncio.wait([serving], timeout=_FAULT_REPLIES_S)
        self._manager.close()

    async def _drain(self) -> None:
        await self._signals.drain.wait()
        logger.info("stopping: %d requests may finish", self._manager.in_flight)
        self._drained_by_s = self._manager.clock() + self._config.drain_timeout
        aborted = await self._manager.drain(self._config.drain_timeout)
        if aborted:
            logger.warning("stopping: aborted %d requests", aborted)

    async def _say_goodbye(self, serving: asyncio.Task[None], quitting: asyncio.Task[bool]) -> int:
        """Let the last replies leave, then end the scheduler in good order."""
        # A slow reader may have the rest of the time for what the engine has finished; one that
        # does not read has not.
        self._unread.hurry(self._connections.all())
        left = max(self._drained_by_s - self._manager.clock(), _GOODBYE_S)
        self._web.config.timeout_graceful_shutdown = math.ceil(left)
        self._web.should_exit = True
        await asyncio.wait([serving, quitting], return_when=asyncio.FIRST_COMPLETED)
        if quitting.done():
            return await self._quit(serving)
        self._manager.close()
        if self._traces is not None:
            await self._traces.close(_GOODBYE_S)
        # A thread may still tokenise a huge text for a client that is gone.
        _exit_within(SCHEDULER_EXIT_S + _GOODBYE_S, 0)
        if not await self._life.process.wait(SCHEDULER_EXIT_S):
            logger.warning("the scheduler did not end when asked: killed")
        logger.info("stopped")
        return 0

    async def _quit(self, serving: asyncio.Task[None]) -> int:
        """Answer all with 503 and be gone soon, whatever still hangs; return who was told twice's
        exit code.
        """
        _exit_within(_QUIT_EXIT_S, 130)
        await self._manager.drain(0.0)
        self._web.should_exit = True
        await asyncio.wait([serving], timeout=_FAULT_REPLIES_S)
        return 130


def _exit_within(seconds: float, code: int) -> None:
    """End the process in `seconds` at the latest, should anything keep it."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
