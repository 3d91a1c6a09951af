"""A child process from start to end, however it ends; and when a living one counts as hung."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.config import ServerConfig
from runtime.ipc import ManagerSocket, private_addresses
from runtime.messages import Ready, Shutdown, State
from runtime.scheduler_process import SchedulerProcess, verdict

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 60.0


def run(main: str, test: Callable[[SchedulerProcess, ManagerSocket], Any]) -> None:
    """Run a test's coroutine with a started stand-in."""

    async def body() -> None:
        with private_addresses() as addresses:
            socket = ManagerSocket(addresses)
            config = ServerConfig(model_path="the/model")
            process = SchedulerProcess(f"tests.runtime.stand_ins:{main}", config, addresses)
            process.start()
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await test(process, socket)
            finally:
                process.kill()
                socket.close()

    asyncio.run(body())


def test_a_process_is_heard_and_ends_when_asked() -> None:
    async def test(process: SchedulerProcess, socket: ManagerSocket) -> None:
        ready = await socket.receive()
        assert isinstance(ready, Ready)
        assert ready.info["pid"] == process.pid
        assert not await process.wait(0.01)
        for number in (signal.SIGINT, signal.SIGTERM):  # for the API process to act on
            os.kill(process.pid, number)
        assert not await process.wait(0.3)

        socket.send(Shutdown())

        assert await process.wait(DEADLINE_S)
        assert process.exit_code == 0
        assert process.how_it_ended() == "exited with code 0"

    run("steady", test)


def test_an_interrupt_while_it_starts_does_not_end_it() -> None:
    async def test(process: SchedulerProcess, socket: ManagerSocket) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process.pid, number)

        assert isinstance(await socket.receive(), Ready)

    run("steady", test)


def test_a_stopped_process_can_be_killed() -> None:
    async def test(process: SchedulerProcess, socket: ManagerSocket) -> None:
        await socket.receive()
        os.kill(process.pid, signal.SIGSTOP)

        process.kill()

        assert process.exit_code == -signal.SIGKILL
        assert process.how_it_ended() == "was killed by SIGKILL"

    run("steady", test)


@pytest.mark.parametrize(
    ("main", "code", "words"),
    [
        ("unservable", 2, "exited with code 2: the/model: num_hidden_layers is missing"),
        ("fails_at_start", 1, "exited with code 1: MemoryError: no room for 1000 pages"),
        ("exits_at_start", 7, "exited with code 7"),
    ],
)
def test_the_last_words_of_a_process_are_kept(main: str, code: int, words: str) -> None:
    async def test(process: SchedulerProcess, socket: ManagerSocket) -> None:
        assert await process.wait(DEADLINE_S)
        assert process.exit_code == code
        assert process.how_it_ended() == words

    run(main, test)


def test_the_process_dies_with_its_parent() -> None:
    """The parent here is killed before it can clean up anything."""
    program = """
import asyncio, os, signal
from runtime.config import ServerConfig
from runtime.ipc import ManagerSocket, private_addresses
from runtime.scheduler_process import SchedulerProcess
async def main():
    with private_addresses() as addresses:
        socket = ManagerSocket(addresses)
        process = SchedulerProcess("tests.runtime.stand_ins:steady", ServerConfig(), addresses)
        process.start()
        await socket.receive()
        print(process.pid, addresses.to_scheduler.removeprefix("ipc://"), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    pid, path = done.stdout.split()

    deadline = time.monotonic() + DEADLINE_S
    while _alive(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)

    assert done.returncode == -signal.SIGKILL
    assert not _alive(int(pid))
    for file in Path(path).parent.iterdir():  # nobody was left to remove them
        file.unlink()
    Path(path).parent.rmdir()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("state", "silence_s", "hint"),
    [
        (None, 3.0, None),
        (None, 3.6, "not been heard of for 3.6 s"),
        (State(0, {}, {}), 0.5, None),
        (State(0, {}, {}, step_age_s=9.0), 0.5, None),
        (State(0, {}, {}, step_age_s=11.0), 0.5, "more than 10 s"),
        (State(0, {}, {}, loop_age_s=3.4), 0.5, None),
        (State(0, {}, {}, loop_age_s=3.6), 0.5, "stuck for 3.6 s"),
        (State(0, {}, {}, loop_age_s=9.0, profiling=True), 9.0, None),
        (State(0, {}, {}, loop_age_s=11.0, profiling=True), 0.5, "stuck for 11.0 s"),
        (State(0, {}, {}, profiling=True), 11.0, "not been heard of for 11.0 s"),
    ],
)
def test_a_process_counts_as_hung_by_what_it_says_and_when(
    state: State | None, silence_s: float, hint: str | None
) -> None:
    reason = verdict(state, silence_s=silence_s, step_limit_s=10.0)

    assert (reason is None) == (hint is None)
    assert hint is None or (reason is not None and hint in reason)
