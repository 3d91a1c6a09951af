"""What the API process takes to hand on prompts and to stream tokens, with a made-up scheduler.

    python -m tests.bench.bench_api [--rows 64] [--tokens 512]

The process that serves HTTP is real, its scheduler tells one token of each row every step. Prints
its CPU time a token, how many tokens a second readers get, and the time between two events of a
stream (p50, p99): with steps that leave it time, and with steps of 1 ms, in which it falls behind
and has to send several tokens in one event. Then its CPU time for a prompt of 8,000 token ids, of
which as many come at once as there are rows. Floors: 250 us of CPU a token, 10,000 tokens a second
when it is behind, 3 ms of CPU a prompt.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from runtime.config import ServerConfig
from runtime.ipc import Addresses, SchedulerSocket
from runtime.messages import (
    Abort,
    Generate,
    GetState,
    Output,
    Outputs,
    Ready,
    Shutdown,
    State,
    Stop,
)
from tests.runtime.tokenizer.samples import byte_tokenizer, write_checkpoint
from tests.testing.fake_scheduler import READY

ROOT = Path(__file__).resolve().parents[2]
STEP_VARIABLE = "UMBRA_BENCH_STEP_MS"
HEARTBEAT_S = 0.5
STEPS_MS = (20.0, 1.0)
CPU_FLOOR_US, RATE_FLOOR, PROMPT_FLOOR_US = 250.0, 10_000.0, 3_000.0
PROMPT_TOKENS = 8_000
_TOKEN = 97


def scheduler(config: ServerConfig, addresses: Addresses) -> None:
    """Tell a token of each running request every step; the main of the scheduler process."""
    step_s = float(os.environ[STEP_VARIABLE]) / 1e3
    messages = SchedulerSocket(addresses)
    messages.send(Ready(8192, 300, [256], READY.info))
    left: dict[int, int] = {}
    beat_s = step_at = 0.0
    while True:
        now = time.monotonic()
        if now >= beat_s:
            messages.send(State(0, {}, {}))
            beat_s = now + HEARTBEAT_S
        for message in messages.receive(0.0 if left else 0.01):
            match message:
                case Generate():
                    left[message.request_id] = message.sampling.max_new_tokens
                case Abort() | Stop():
                    for request_id in message.request_ids:
                        left.pop(request_id, None)
                case GetState():
                    messages.send(State(message.call_id, {}, {}))
                case Shutdown():
                    messages.close()
                    return
                case _:
                    pass
        if left:
            messages.send(Outputs(list(_step(left))))
        step_at = max(step_at + step_s, now)
        time.sleep(max(0.0, step_at - time.monotonic()))


def _step(left: dict[int, int]) -> Iterator[Output]:
    for request_id in list(left):
        left[request_id] -= 1
        done = not left[request_id]
        if done:
            del left[request_id]
        yield Output(request_id, [_TOKEN], "length" if done else None, prompt_tokens=1)


@dataclass(frozen=True, slots=True)
class Streamed:
    """What all streams of a run took."""

    cpu_us: float
    rate: float
    gaps_ms: list[float]

    def line(self, step_ms: float) -> str:
        """Return what to print."""
        p50, p99 = (statistics.quantiles(self.gaps_ms, n=100)[at] for at in (49, 98))
        return (
            f"steps of {step_ms:g} ms: {self.cpu_us:.0f} us of CPU a token, "
            f"{self.rate:,.0f} tokens/s, between events p50 {p50:.1f} ms, p99 {p99:.1f} ms"
        )


def main() -> int:
    """Print both runs; return 1 if a floor is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_api", description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    found = {ms: measure(ms, rows=options.rows, tokens=options.tokens) for ms in STEPS_MS}
    for step_ms, streamed in found.items():
        print(streamed.line(step_ms), flush=True)
    prompt_us = measure_prompts(options.rows)
    print(f"prompts of {PROMPT_TOKENS} ids, {options.rows} at once: {prompt_us:.0f} us of CPU each")
    keeping_up, behind = found.values()
    slow = keeping_up.cpu_us > CPU_FLOOR_US or behind.rate < RATE_FLOOR
    return int(slow or prompt_us > PROMPT_FLOOR_US)


def measure(step_ms: float, *, rows: int, tokens: int) -> Streamed:
    """Stream `tokens` tokens to each of `rows` readers, after a short run that warms up."""
    with _server(step_ms) as (port, pid):
        asyncio.run(_read_all(port, rows, 16))
        before_s = _cpu_s(pid)
        times = asyncio.run(_read_all(port, rows, tokens))
        cpu_s = _cpu_s(pid) - before_s
    took_s = max(own[-1] for own in times) - min(own[0] for own in times)
    gaps = [(b - a) * 1e3 for own in times for a, b in itertools.pairwise(own)]
    return Streamed(cpu_s / (rows * tokens) * 1e6, rows * tokens / took_s, gaps)


def measure_prompts(rows: int, *, rounds: int = 4) -> float:
    """Return microseconds of CPU a long prompt takes, `rows` of them sent at once."""
    with _server(STEPS_MS[-1]) as (port, pid):
        asyncio.run(_read_all(port, rows, 1, prompt=PROMPT_TOKENS))
        before_s = _cpu_s(pid)
        for _ in range(rounds):
            asyncio.run(_read_all(port, rows, 1, prompt=PROMPT_TOKENS))
        return (_cpu_s(pid) - before_s) / (rounds * rows) * 1e6


@contextlib.contextmanager
def _server(step_ms: float) -> Iterator[tuple[int, int]]:
    """Yield port and process id of an API process with the scheduler above."""
    program = (
        "import sys; from runtime.launch import serve; "
        f"sys.exit(serve(sys.argv[1:], scheduler_main={f'{__spec__.name}:scheduler'!r}))"
    )
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as probe:
        folder, port = Path(name), probe.getsockname()[1]
        (folder / "config.json").write_text("{}")
        write_checkpoint(folder, byte_tokenizer())
        probe.close()
        flags = ["--model-path", name, "--port", str(port), "--log-level", "warning"]
        process = subprocess.Popen(
            [sys.executable, "-c", program, *flags],
            cwd=ROOT,
            env={**os.environ, STEP_VARIABLE: str(step_ms)},
        )
        try:
            _await_ready(port, process)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait()


def _await_ready(port: int, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
    sys.exit(f"the server exited with {process.returncode}")


async def _read_all(port: int, rows: int, tokens: int, *, prompt: int = 1) -> list[list[float]]:
    sampling = {"max_new_tokens": tokens, "temperature": 0}
    fields = {"input_ids": [1] * prompt, "sampling_params": sampling, "stream": True}
    body = json.dumps(fields).encode()
    return await asyncio.gather(*(_read(port, body) for _ in range(rows)))


async def _read(port: int, body: bytes) -> list[float]:
    """Return when each event of a stream came; a bare reader, which costs little itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    times: list[float] = []
    while b"[DONE]" not in (line := await reader.readline()):
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
        elif not line:
            sys.exit("a stream broke off")
    writer.close()
    return times


def _cpu_s(pid: int) -> float:
    """Return the CPU time that all threads of a process took so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
