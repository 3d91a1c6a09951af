"""Supervision of a scheduler process: bring it up, and notice when it dies or hangs.

What a server and an in-process engine have in common. All of it runs in one event loop.
"""

import asyncio
import dataclasses
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runtime.api_keys import read_api_keys
from runtime.child import CONFIG_EXIT_CODE
from runtime.config import ServerConfig
from runtime.errors import ConfigError, WorkerDied
from runtime.ipc import ManagerSocket
from runtime.messages import Ready
from runtime.model_folder import model_folder, odd_file
from runtime.scheduler_process import SchedulerProcess, verdict
from runtime.template_probe import probe_template
from runtime.tokenizer.manager import TokenizerManager
from runtime.tokenizer.tokenizer import TextTokenizer
from runtime.traces_endpoint import check_extra, parse_traces_endpoint

SCHEDULER_MAIN = "runtime.scheduler.process:run_scheduler"
# How long a scheduler that was asked to end may take.
SCHEDULER_EXIT_S = 2.0
_WATCH_S = 0.1
# This process itself was held up: what it did not hear meanwhile proves nothing.
_OWN_STALL_S = 1.0


def resolve(config: ServerConfig) -> ServerConfig:
    """Return `config` with paths and names filled in.

    Without a model path it is the default model's. Raises ConfigError for a folder that is no
    checkpoint, a file of API keys that cannot be used, or traces without what makes them.
    """
    if config.api_key_file is not None:
        read_api_keys(config.api_key_file)  # now: the server reads it when the weights are loaded
    check_extra(parse_traces_endpoint(config.otlp_traces_endpoint))
    folder, name = model_folder(config.model_path)
    tokenizer_path = config.tokenizer_path or str(folder)
    if not os.path.isdir(tokenizer_path):
        raise ConfigError(f"--tokenizer-path {tokenizer_path}: there is no such folder")
    if (fault := odd_file(Path(tokenizer_path))) is not None:
        raise ConfigError(f"--tokenizer-path {tokenizer_path}: the folder {fault}")
    # A checkpoint may have none and take token ids; who names a folder wants text.
    if config.tokenizer_path and not (Path(tokenizer_path) / "tokenizer.json").is_file():
        raise ConfigError(f"--tokenizer-path {tokenizer_path}: the folder has no tokenizer.json")
    return dataclasses.replace(
        config,
        model_path=str(folder),
        tokenizer_path=tokenizer_path,
        served_model_name=config.served_model_name or name,
    )


async def bring_up(
    config: ServerConfig,
    messages: ManagerSocket,
    process: SchedulerProcess,
    stop: asyncio.Event,
) -> TokenizerManager | None:
    """Wait until a started scheduler is ready; return the manager that speaks to it.

    stop  set when it is no longer wanted: then None is returned
    Raises ConfigError for what it cannot serve, WorkerDied where it ends otherwise.
    """
    # Not the loop's own threads: those must not be there when an interpreter ends.
    loader = ThreadPoolExecutor(1, "tokenizer")
    try:
        # Loaded while the scheduler loads its weights.
        loop, folder = asyncio.get_running_loop(), config.tokenizer_path or ""
        tokenizer = await loop.run_in_executor(loader, TextTokenizer.load, folder)
        if tokenizer.chat_template is not None:
            await loop.run_in_executor(loader, probe_template, tokenizer.chat_template)
        ready = await wait_ready(messages, process, stop)
        if ready is None:
            return None
        seeds = random.Random(config.random_seed)
        return TokenizerManager(
            config,
            tokenizer,
            messages,
            ready,
            seeds=iter(lambda: seeds.getrandbits(63), None),
        )
    finally:
        loader.shutdown(wait=False)


async def wait_ready(
    messages: ManagerSocket, process: SchedulerProcess, stop: asyncio.Event | None = None
) -> Ready | None:
    """Return the first message of a started scheduler.

    stop  set when it is no longer wanted: then None is returned
    Raises ConfigError for what it cannot serve, WorkerDied where it ends otherwise.
    """
    stop = stop or asyncio.Event()
    ready = asyncio.create_task(_first_ready(messages))
    others = [asyncio.create_task(stop.wait()), asyncio.create_task(process.exited.wait())]
    try:
        await asyncio.wait([ready, *others], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return None
        if ready.done():
            return ready.result()
        if process.exit_code == CONFIG_EXIT_CODE:
            raise ConfigError(process.last_words() or "the checkpoint cannot be served")
        raise WorkerDied(f"while starting, the scheduler {process.how_it_ended()}")
    finally:
        for task in (ready, *others):
            task.cancel()


async def _first_ready(messages: ManagerSocket) -> Ready:
    while True:
        message = await messages.receive()
        if isinstance(message, Ready):
            return message


async def watch(manager: TokenizerManager, process: SchedulerProcess) -> str:
    """Return why the scheduler is dead or hung, as soon as it is."""
    clock = manager.clock
    counted_from = last_turn = clock()
    while not await process.wait(_WATCH_S):
        now = clock()
        if now - last_turn > _OWN_STALL_S:
            counted_from = now
        last_turn = now
        reason = verdict(
            manager.last_state,
            silence_s=now - max(counted_from, manager.last_heartbeat),
            step_limit_s=manager.config.watchdog_timeout,
        )
        if reason is not None:
            process.dump_stacks()
            return reason
    return f"the scheduler {process.how_it_ended()}"
