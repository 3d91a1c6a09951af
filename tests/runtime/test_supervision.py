"""Tests of runtime.supervision: what it takes for a checkpoint, what comes up, what it notices.

How a whole server starts and ends on it is in test_launch.py.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from runtime.config import ServerConfig
from runtime.default_model.folder import CHECKPOINT
from runtime.errors import ConfigError, WorkerDied
from runtime.ipc import ManagerSocket, private_addresses
from runtime.scheduler_process import SchedulerProcess
from runtime.supervision import bring_up, resolve, watch
from runtime.tokenizer.manager import TokenizerManager
from tests.runtime.tokenizer.samples import byte_tokenizer, write_checkpoint

DEADLINE_S = 60.0


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder that looks like a checkpoint from the outside."""
    (tmp_path / "config.json").write_text("{}")
    return write_checkpoint(tmp_path, byte_tokenizer())


def test_resolve_fills_paths_and_names(checkpoint: Path) -> None:
    config = resolve(ServerConfig(model_path=str(checkpoint)))

    assert config.tokenizer_path == config.served_model_name == str(checkpoint)
    named = ServerConfig(model_path=str(checkpoint), served_model_name="umbra")
    assert resolve(named).served_model_name == "umbra"


def test_without_a_model_path_the_default_model_is_served() -> None:
    config = resolve(ServerConfig())

    assert config.model_path == config.tokenizer_path == str(CHECKPOINT)
    assert config.served_model_name == "default"


@pytest.mark.parametrize("missing", ["folder", "config.json", "tokenizer", "tokenizer.json"])
def test_resolve_refuses_what_is_no_checkpoint(tmp_path: Path, missing: str) -> None:
    folder, tokenizer = tmp_path / "model", None
    if missing != "folder":
        folder.mkdir()
    if missing.startswith("tokenizer"):
        (folder / "config.json").write_text("{}")
        tokenizer = str(tmp_path / "nowhere" if missing == "tokenizer" else folder)

    with pytest.raises(ConfigError, match=missing):
        resolve(ServerConfig(model_path=str(folder), tokenizer_path=tokenizer))


Test = Callable[[TokenizerManager | None, SchedulerProcess], Awaitable[None]]


def run(main: str, checkpoint: Path, test: Test, *, unwanted: bool = False) -> None:
    """Bring up a stand-in, and run a test on what came up."""

    async def body() -> None:
        config = resolve(ServerConfig(model_path=str(checkpoint)))
        stop = asyncio.Event()
        if unwanted:
            stop.set()
        with private_addresses() as addresses:
            messages = ManagerSocket(addresses)
            process = SchedulerProcess(f"tests.runtime.stand_ins:{main}", config, addresses)
            process.start()
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await test(await bring_up(config, messages, process, stop), process)
            finally:
                process.kill()
                messages.close()

    asyncio.run(body())


def test_what_is_ready_is_watched_until_it_dies(checkpoint: Path) -> None:
    async def test(manager: TokenizerManager | None, process: SchedulerProcess) -> None:
        assert manager is not None
        assert manager.ready.info["pid"] == process.pid
        watching = asyncio.create_task(watch(manager, process))

        os.kill(process.pid, signal.SIGKILL)

        assert await watching == "the scheduler was killed by SIGKILL"
        manager.close()

    run("steady", checkpoint, test)


def test_what_is_no_longer_wanted_is_not_waited_for(checkpoint: Path) -> None:
    async def test(manager: TokenizerManager | None, process: SchedulerProcess) -> None:
        assert manager is None

    run("never_ready", checkpoint, test, unwanted=True)


@pytest.mark.parametrize(
    ("main", "error", "words"),
    [
        ("unservable", ConfigError, "num_hidden_layers is missing"),
        ("fails_at_start", WorkerDied, "exited with code 1: MemoryError: no room"),
    ],
)
def test_what_cannot_come_up_says_why(
    checkpoint: Path, main: str, error: type[Exception], words: str
) -> None:
    async def test(manager: TokenizerManager | None, process: SchedulerProcess) -> None:
        raise AssertionError("it came up")

    with pytest.raises(error, match=words):
        run(main, checkpoint, test)
