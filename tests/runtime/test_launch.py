"""A whole server around a stand-in scheduler: start, faults, signals, exit codes, no orphans.

Each test that needs processes starts one server and looks at as much of its life as fits.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from runtime.errors import ConfigError
from runtime.launch import KEEP_IDLE_S, listen
from runtime.open_files import MOST_FILES
from tests.runtime.stand_ins import DIE_AT, SILENT_AT
from tests.runtime.tokenizer.samples import byte_tokenizer, write_checkpoint
from tests.testing.server_process import reserved_port

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 120.0
EXIT_S = 60.0


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder that looks like a checkpoint from the outside."""
    (tmp_path / "config.json").write_text("{}")
    return write_checkpoint(tmp_path, byte_tokenizer())


class Server:
    """A server process, its log, and its scheduler's process id."""

    def __init__(
        self, checkpoint: Path, stand_in: str, *flags: str, port: int, first: str = ""
    ) -> None:
        program = f"""
import sys
from runtime.launch import serve
{first}
sys.exit(serve(sys.argv[1:], scheduler_main="tests.runtime.stand_ins:{stand_in}"))
"""
        argv = ["--model-path", str(checkpoint), "--port", str(port), *flags]
        self.log_path = checkpoint / f"{stand_in}-{port}.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *argv], cwd=ROOT, stdout=log, stderr=log
            )
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=EXIT_S, trust_env=False
        )

    @property
    def log(self) -> str:
        """What the processes have printed."""
        return self.log_path.read_text()

    def wait_ready(self) -> int:
        """Wait for the famous line; return the scheduler's process id."""
        self.wait_log("The server is fired up and ready to roll!")
        info: dict[str, Any] = self.client.get("/server_info").json()
        return int(info["pid"])

    def wait_log(self, text: str) -> None:
        """Wait until `text` was printed."""
        deadline = time.monotonic() + START_S
        while text not in self.log:
            assert self.process.poll() is None, f"it exited:\n{self.log}"
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.log}"
            time.sleep(0.02)

    def generate(self, token: int, count: int = 3) -> httpx.Response:
        """Ask for a continuation of one token."""
        body = {"input_ids": [token], "sampling_params": {"max_new_tokens": count}}
        return self.client.post("/generate", json=body)

    @contextlib.contextmanager
    def left_waiting(self) -> Iterator[list[httpx.Response]]:
        """Have a request wait in the engine meanwhile; its reply, if any, is there at the end."""
        replies: list[httpx.Response] = []

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                replies.append(self.generate(SILENT_AT))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            self.wait_log("left waiting")
            yield replies
        finally:
            asking.join()

    def exit_code(self, timeout_s: float = EXIT_S) -> int:
        """Wait for the end."""
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def server(checkpoint: Path, stand_in: str, *flags: str, first: str = "") -> Iterator[Server]:
    """Start a server, and make sure that nothing of it stays.

    first  code that its process runs before
    """
    with reserved_port() as port:
        started = Server(checkpoint, stand_in, *flags, port=port, first=first)
        try:
            yield started
        finally:
            started.client.close()
            started.process.kill()
            started.process.wait()


@contextlib.contextmanager
def few_files(count: int) -> Iterator[int]:
    """Start processes with a soft limit of so many files meanwhile; give the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_that_drains_takes_no_more_and_ends_with_its_last_request(
    checkpoint: Path,
) -> None:
    flags = ("--drain-timeout", "300", "--max-queued-requests", str(1 << 20))
    with few_files(512) as hard, server(checkpoint, "steady", *flags) as up:
        scheduler = up.wait_ready()
        files, _ = resource.prlimit(up.process.pid, resource.RLIMIT_NOFILE)
        assert files in (hard, MOST_FILES)
        assert f"at most {files} files may be open" in up.log
        assert up.generate(10).json()["output_ids"] == [11, 12, 13]
        assert up.client.get("/ready").status_code == 200

        with up.left_waiting() as replies:
            up.process.send_signal(signal.SIGTERM)
            up.wait_log("stopping")
            assert up.client.get("/ready").status_code == 503
            assert up.generate(10).status_code == 503
            up.client.post("/abort_request", json={"abort_all": True})
            assert up.exit_code() == 0

        assert replies[0].json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert not alive(scheduler)
        assert "stopping: aborted" not in up.log
        assert "Traceback" not in up.log


def test_a_drain_that_takes_too_long_aborts_what_runs(checkpoint: Path) -> None:
    with server(checkpoint, "steady", "--drain-timeout", "0.2") as up:
        scheduler = up.wait_ready()

        with up.left_waiting() as replies:
            up.process.send_signal(signal.SIGTERM)
            assert up.exit_code() == 0

        assert replies[0].status_code == 503
        assert replies[0].json() == {"error": {"message": "the server is shutting down"}}
        assert not alive(scheduler)
        assert "aborted 1 requests" in up.log
        assert "Traceback" not in up.log


def test_a_killed_scheduler_fails_its_requests_and_ends_the_server(checkpoint: Path) -> None:
    with server(checkpoint, "steady") as up:
        up.wait_ready()

        reply = up.generate(DIE_AT)

        assert up.exit_code() == 1
        assert reply.status_code == 503
        assert "the engine died: the scheduler was killed by SIGKILL" in reply.text
        assert "was killed by SIGKILL" in up.log


def test_a_stopped_scheduler_is_noticed_and_killed(checkpoint: Path) -> None:
    with server(checkpoint, "steady") as up:
        scheduler = up.wait_ready()
        os.kill(scheduler, signal.SIGSTOP)

        reply = up.generate(10)

        assert up.exit_code() == 1
        assert reply.status_code == 503
        assert "has not been heard of" in json.dumps(reply.json())
        assert not alive(scheduler)


@pytest.mark.slow
def test_a_stuck_loop_ends_the_server(checkpoint: Path) -> None:
    with server(checkpoint, "stuck_loop") as up:
        up.wait_log("The server is fired up")

        assert up.exit_code() == 1
        assert "loop has been stuck" in up.log
        assert 'File "' in up.log  # where it hung


def test_a_killed_server_leaves_no_scheduler(checkpoint: Path) -> None:
    with server(checkpoint, "steady") as up:
        scheduler = up.wait_ready()

        up.process.kill()

        deadline = time.monotonic() + EXIT_S
        while alive(scheduler):
            assert time.monotonic() < deadline, "the scheduler outlived its parent"
            time.sleep(0.02)


def test_a_checkpoint_that_cannot_be_served_is_said_in_one_line(checkpoint: Path) -> None:
    with server(checkpoint, "unservable") as up:
        assert up.exit_code(START_S) == 2
        assert up.log == f"error: {checkpoint}: num_hidden_layers is missing\n"


@pytest.mark.slow
def test_a_second_interrupt_quits_at_once(checkpoint: Path) -> None:
    with server(checkpoint, "steady") as up:
        scheduler = up.wait_ready()
        with up.left_waiting() as replies:
            up.process.send_signal(signal.SIGINT)
            up.wait_log("stopping: 1 requests")
            up.process.send_signal(signal.SIGINT)
            assert up.exit_code() == 130

        assert not alive(scheduler)
        [reply] = replies
        assert reply.status_code == 503
        assert "Traceback" not in up.log


ENDLESS_TEXTS = """
import time
from runtime.tokenizer.tokenizer import TextTokenizer

def encode(*arguments, **options):
    print("tokenising", file=sys.stderr, flush=True)
    time.sleep(3600)

TextTokenizer.encode = encode
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["draining", "saying goodbye"])
def test_a_second_interrupt_waits_for_no_text_that_is_tokenised(
    checkpoint: Path, when: str
) -> None:
    with server(checkpoint, "steady", first=ENDLESS_TEXTS) as up, contextlib.ExitStack() as stack:
        scheduler = up.wait_ready()

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                up.client.post("/tokenize", json={"prompt": "a"})

        asking = threading.Thread(target=ask)
        asking.start()
        stack.callback(asking.join)
        up.wait_log("tokenising")
        if when == "draining":
            stack.enter_context(up.left_waiting())
        up.process.send_signal(signal.SIGINT)
        up.wait_log("stopping: ")
        up.process.send_signal(signal.SIGINT)

        assert up.exit_code() == 130
        assert not alive(scheduler)


def test_a_port_in_use_is_said_in_one_line(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with server(checkpoint, "never_ready", "--port", str(port)) as up:
            assert up.exit_code(START_S) == 1
            assert up.log == f"error: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_server_can_be_stopped_while_it_loads(checkpoint: Path) -> None:
    with server(checkpoint, "never_ready") as up:
        deadline = time.monotonic() + START_S
        children = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children")
        while not children.read_text().split() and time.monotonic() < deadline:
            time.sleep(0.02)
        loading = children.read_text().split()

        up.process.send_signal(signal.SIGTERM)

        assert up.exit_code() == 0
        assert not any(alive(int(pid)) for pid in loading)


def test_listen_refuses_addresses_that_are_none() -> None:
    with pytest.raises(ConfigError, match="host"):
        listen("no such host.invalid", 30000)
    with pytest.raises(ConfigError, match="port"):
        listen("127.0.0.1", 70000)
    with contextlib.closing(listen("127.0.0.1", 0)) as listener:
        assert listener.getsockname()[1] > 0


def test_idle_connections_are_closed_by_clients_first() -> None:
    limits = openai.DEFAULT_CONNECTION_LIMITS

    assert limits.keepalive_expiry is not None
    assert limits.keepalive_expiry < KEEP_IDLE_S
