"""A real server: `launch_server.py` as a child process on a free loopback port, and a client.

with running_server("--full-pages", "64") as server:
    reply = server.generate(input_ids=[0, 5, 9], max_new_tokens=4)
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

import httpx

from runtime.lang.lines import LineCutter
from tests.testing.processes import descendants

ROOT = Path(__file__).resolve().parent.parent.parent
LAUNCHER = ROOT / "launch_server.py"
LOG_CHARS = 6000
EXIT_S = 120.0

Json = dict[str, Any]


class ServerProcess:
    """One running server and the requests that tests send it.

    pid       of the process that was started, the one that gets the signals
    url       where it answers
    client    an httpx client bound to `url`
    """

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: IO[bytes]) -> None:
        self.pid = process.pid
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=300.0, trust_env=False)
        self._process = process
        self._log = log

    def log(self) -> str:
        """Return the end of what the server printed so far."""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), LOG_CHARS, max(0, size - LOG_CHARS))
        return text.decode(errors="replace")

    def wait_ready(self, timeout_s: float) -> None:
        """Return once /ready says 200; fail with the server's log at the deadline or its death."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise AssertionError(f"the server exited with {code} at start:\n{self.log()}")
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/ready", timeout=30.0).status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the server was not ready after {timeout_s:g} s:\n{self.log()}")

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """Send a JSON body and return whatever came back."""
        return self.client.post(path, json=body, **options)

    def get(self, path: str) -> Json:
        """Return the JSON at `path`; fail on any other status than 200."""
        response = self.client.get(path)
        assert response.status_code == 200, f"{path}: {response.status_code} {response.text}"
        return response.json()

    def generate(
        self, prompt: str | list[int] | list[list[int]], extra: Json | None = None, **sampling: Any
    ) -> Any:
        """Return the reply of /generate: an object, or a list of them for a list of prompts.

        `sampling` goes into sampling_params (greedy unless it says otherwise), `extra` beside it.
        """
        response = self.post("/generate", generate_body(prompt, extra, **sampling))
        assert response.status_code == 200, f"{response.status_code} {response.text}\n{self.log()}"
        return response.json()

    def stream(
        self, prompt: str | list[int], extra: Json | None = None, **sampling: Any
    ) -> Iterator[Json]:
        """Yield the events of a streamed /generate. Closing the iterator hangs up."""
        body = generate_body(prompt, {**(extra or {}), "stream": True}, **sampling)
        with self.client.stream("POST", "/generate", json=body) as response:
            assert response.status_code == 200, response.read().decode()
            yield from events(response)

    def chat(self, messages: list[Json], **fields: Any) -> Json:
        """Return the reply of /v1/chat/completions."""
        body = {"model": self.model(), "messages": messages, "temperature": 0, **fields}
        response = self.post("/v1/chat/completions", body)
        assert response.status_code == 200, f"{response.status_code} {response.text}\n{self.log()}"
        return response.json()

    def model(self) -> str:
        """Return the name the server serves its model under."""
        return self.get("/v1/models")["data"][0]["id"]

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process that was started, not its children."""
        self._process.send_signal(number)

    def wait_exit(self, timeout_s: float = EXIT_S) -> int:
        """Return the exit code; fail with the log when it is still up after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still up after {timeout_s:g} s:\n{self.log()}") from None

    def has_exited(self) -> bool:
        """Say whether the process that was started is gone."""
        return self._process.poll() is not None

    def children(self) -> list[int]:
        """Return the ids of all living descendants, nearest first (Linux)."""
        return descendants(self.pid)

    def kill(self) -> None:
        """End the process and its descendants without asking; for what a test left behind."""
        for pid in [*self.children(), self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(EXIT_S)


def generate_body(
    prompt: str | list[int] | list[list[int]], extra: Json | None = None, **sampling: Any
) -> Json:
    """Return a /generate body: greedy unless `sampling` says otherwise."""
    field = "text" if isinstance(prompt, str) else "input_ids"
    return {field: prompt, "sampling_params": {"temperature": 0, **sampling}, **(extra or {})}


def events(response: httpx.Response) -> Iterator[Json]:
    """Yield the JSON of each server-sent event; the stream must end with [DONE]."""
    cutter = LineCutter()
    for line in chain.from_iterable(map(cutter.take, response.iter_bytes())):
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended without [DONE]")


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Hold a loopback port: nobody else is given it, and a server may listen on it (on Linux)."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


@contextlib.contextmanager
def running_server(
    *flags: str,
    ready_s: float = 240.0,
    stop: signal.Signals = signal.SIGTERM,
    exit_code: int | None = 0,
    check: bool = True,
    launcher: Sequence[str] = (str(LAUNCHER),),
) -> Generator[ServerProcess]:
    """Start a server with `flags`, wait until it is ready, and stop it at the end.

    It gets the signal `stop` unless it is gone by then, and must exit with `exit_code` (None: any
    but 0). With `check` the flag --check-every-step is added: every cache invariant holds after
    every step, or the server dies and this fails. `launcher` is what Python is given to run.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with reserved_port() as port, tempfile.TemporaryFile() as log:
        command = [sys.executable, *launcher, "--port", str(port), *flags]
        command += ["--check-every-step"] if check else []
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        server = ServerProcess(process, port, log)
        try:
            server.wait_ready(ready_s)
            yield server
            if not server.has_exited():
                server.send_signal(stop)
            code = server.wait_exit()
            fine = code != 0 if exit_code is None else code == exit_code
            assert fine, f"exit code {code}:\n{server.log()}"
        finally:
            server.client.close()
            server.kill()
