"""A real API process whose scheduler is a stand-in that computes nothing.

The stand-in waits until all rows are there, then sends one token of each of them every step.
Event loop and garbage collector of the API process note how late they are and how long they pause.
"""

import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from runtime.config import ServerConfig
from runtime.ipc import Addresses, SchedulerSocket
from runtime.launch import serve
from runtime.messages import (
    Abort,
    FromScheduler,
    Generate,
    GetState,
    Output,
    Outputs,
    Ready,
    Shutdown,
    State,
    Stop,
    ToScheduler,
)
from tests.runtime.tokenizer.samples import write_checkpoint
from tests.testing.fake_scheduler import READY
from tests.testing.stand_in.tokenizer import EOS_ID, SPECIALS, VOCAB_SIZE, train_tokenizer

ROOT = Path(__file__).resolve().parents[3]
_SETTINGS = "UMBRA_BENCH_API"
_HEARTBEAT_S = 0.5
_PROBE_S = 0.005
_CONTEXT_TOKENS = 16_384


class Settings(msgspec.Struct, frozen=True):
    """What the server process reads from its environment.

    step_ms  time from one step to the next
    rows     requests that must be there before the first step
    folder   where reports go
    """

    step_ms: float
    rows: int
    folder: str

    @classmethod
    def read(cls) -> "Settings":
        """Return the settings of this process."""
        return msgspec.json.decode(os.environ[_SETTINGS], type=cls)


class Report(msgspec.Struct, frozen=True):
    """What a server process noted about itself: (monotonic seconds, milliseconds).

    late    by how much a timer of the event loop was late, every 5 ms
    pauses  of the garbage collector
    """

    late: list[tuple[float, float]]
    pauses: list[tuple[float, float]]

    def between(self, start_s: float, stop_s: float) -> "Report":
        """Return what was noted in that time."""
        kept = [
            [(at_s, ms) for at_s, ms in notes if start_s <= at_s <= stop_s]
            for notes in (self.late, self.pauses)
        ]
        return Report(*kept)


# --- the scheduler process


def scheduler(config: ServerConfig, addresses: Addresses) -> None:
    """Send a token of each running request every step; the main of the scheduler process."""
    settings = Settings.read()
    _StandIn(SchedulerSocket(addresses), settings).run()


class _StandIn:
    def __init__(self, messages: SchedulerSocket, settings: Settings) -> None:
        self._messages = messages
        self._rows = settings.rows
        self._step_s = settings.step_ms / 1e3
        self._left: dict[int, int] = {}
        self._stepping = False
        self._tokens = _ascii_tokens()
        self._step = 0

    def run(self) -> None:
        """Answer until the server shuts down."""
        self._send(Ready(_CONTEXT_TOKENS, VOCAB_SIZE, [EOS_ID], READY.info))
        beat_s = step_at = 0.0
        while True:
            now = time.monotonic()
            if now >= beat_s:
                self._send(State(0, {}, {}))
                beat_s = now + _HEARTBEAT_S
            for message in self._messages.receive(0.0 if self._stepping else 0.01):
                if not self._take(message):
                    self._messages.close()
                    return
            self._stepping = bool(self._left) and (self._stepping or len(self._left) >= self._rows)
            if self._stepping:
                self._send(Outputs(list(self._outputs())))
            step_at = max(step_at + self._step_s, now)
            time.sleep(max(0.0, step_at - time.monotonic()))

    def _send(self, message: FromScheduler) -> None:
        self._messages.send(message)

    def _take(self, message: ToScheduler) -> bool:
        """Note a message; False for the last one."""
        match message:
            case Generate():
                self._left[message.request_id] = message.sampling.max_new_tokens
            case Abort() | Stop():
                for request_id in message.request_ids:
                    self._left.pop(request_id, None)
            case GetState():
                self._send(State(message.call_id, {}, {}))
            case _:
                pass
        return not isinstance(message, Shutdown)

    def _outputs(self) -> Iterator[Output]:
        self._step += 1
        for row, request_id in enumerate(list(self._left)):
            self._left[request_id] -= 1
            done = not self._left[request_id]
            if done:
                del self._left[request_id]
            token = self._tokens[(self._step + row) % len(self._tokens)]
            yield Output(request_id, [token], "length" if done else None, prompt_tokens=1)


def _ascii_tokens() -> list[int]:
    """Return tokens whose text is plain, so that each of them makes an event."""
    tokenizer = train_tokenizer()
    ids = range(len(SPECIALS), VOCAB_SIZE)
    return [i for i in ids if tokenizer.decode([i]).replace(" ", "").isalpha()]


# --- the API process


class _Observed(asyncio.DefaultEventLoopPolicy):
    """Makes event loops that note how late a timer is; the report is written at their end."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = super().new_event_loop()
        _Probe(loop)
        return loop


class _Probe:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._late: list[tuple[float, float]] = []
        self._pauses: list[tuple[float, float]] = []
        self._paused_at = 0.0
        self._close = loop.close
        loop.close = self._finish
        gc.callbacks.append(self._on_collection)
        loop.call_soon(self._turn, time.monotonic())

    def _turn(self, due_s: float) -> None:
        now = time.monotonic()
        self._late.append((now, (now - due_s) * 1e3))
        due_s = now + _PROBE_S
        self._loop.call_at(due_s, self._turn, due_s)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        now = time.monotonic()
        if phase == "stop":
            self._pauses.append((now, (now - self._paused_at) * 1e3))
        self._paused_at = now

    def _finish(self) -> None:
        gc.callbacks.remove(self._on_collection)
        report = Report(self._late, self._pauses)
        (Path(Settings.read().folder) / "report.json").write_bytes(msgspec.json.encode(report))
        self._close()


def main() -> int:
    """Serve with the stand-in; the flags are a server's."""
    asyncio.set_event_loop_policy(_Observed())
    return serve(sys.argv[1:], scheduler_main=f"{scheduler.__module__}:scheduler")


# --- the benchmark's side


@dataclass(frozen=True, slots=True)
class Running:
    """An API process that is up."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        """Return the CPU time that all its threads took so far."""
        tasks = Path(f"/proc/{self.pid}/task")
        return sum(int((t / "schedstat").read_text().split()[0]) for t in tasks.iterdir()) / 1e9


@contextlib.contextmanager
def running(step_ms: float, *, rows: int) -> Iterator[tuple[Running, list[Report]]]:
    """Yield an API process, and a list that has its report when it has ended."""
    program = f"import sys; from {__name__} import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), _free_port()
        (folder / "config.json").write_text("{}")
        write_checkpoint(folder, train_tokenizer())
        flags = ["--model-path", name, "--port", str(port), "--log-level", "warning"]
        settings = msgspec.json.encode(Settings(step_ms, rows, name)).decode()
        command: list[Any] = [sys.executable, "-c", program, *flags]
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, _SETTINGS: settings})
        reports: list[Report] = []
        try:
            _await_ready(port, process)
            yield Running(port, process.pid), reports
        finally:
            process.terminate()
            process.wait()
        written = (folder / "report.json").read_bytes()
        reports.append(msgspec.json.decode(written, type=Report))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def _await_ready(port: int, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
    sys.exit(f"the server exited with {process.returncode}")
