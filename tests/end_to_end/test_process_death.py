"""How a server ends: a drain on SIGTERM, and aloud when one of its processes dies or hangs.

Whoever waits for a reply when the scheduler dies gets an error, not silence. An
idle server ends with code 0 on SIGTERM and on SIGINT: the servers of the other files show it.
"""

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.end_to_end.pools import read_state
from tests.end_to_end.tiny_model import tiny_model_flags
from tests.testing.server_process import ServerProcess, events, generate_body, running_server

# Five seconds are promised; without a word from the server nobody would ever hear anything.
NOTICE_S = 60.0
FINISHED = "length"


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of a model that is quick on the CPU."""
    return (*tiny_model_flags(tmp_path_factory.mktemp("model")), "--full-pages", "64")


def _scheduler(server: ServerProcess) -> int:
    """Return the process that computes: of the descendants, the one with the most memory."""

    def resident_pages(pid: int) -> int:
        with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1])

    return max(server.children(), key=resident_pages)


def _ask(server: ServerProcess, new_tokens: int, *, stream: bool) -> str:
    """Return how a long request ended: its finish reason, or the error it got."""
    body = generate_body([0, 5, 9], {"stream": stream}, max_new_tokens=new_tokens, ignore_eos=True)
    try:
        if stream:
            with server.client.stream("POST", "/generate", json=body) as response:
                last = list(events(response))[-1]
        else:
            last = server.post("/generate", body).json()
    except (httpx.TransportError, AssertionError) as fault:
        return f"cut off: {fault!r}"
    return str(last["error"] if "error" in last else last["meta_info"]["finish_reason"]["type"])


def _clients(pool: ThreadPoolExecutor, server: ServerProcess, new_tokens: int) -> list[Future[str]]:
    """Start one streaming and one plain client, and wait until the scheduler has both."""
    waiting = [pool.submit(_ask, server, new_tokens, stream=stream) for stream in (True, False)]
    deadline = time.monotonic() + 60.0
    while read_state(server)["requests"] < len(waiting):
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)
    return waiting


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(flags: tuple[str, ...]) -> None:
    with (
        running_server(*flags, "--drain-timeout", "200", check=False) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = _clients(pool, server, 400)

        server.send_signal(signal.SIGTERM)

        assert [future.result(timeout=200) for future in waiting] == [FINISHED, FINISHED]
        assert server.wait_exit() == 0
        with pytest.raises(httpx.TransportError):
            server.client.get("/health", timeout=2.0)


def test_a_drain_that_takes_too_long_is_cut_short(flags: tuple[str, ...]) -> None:
    with (
        running_server(*flags, "--drain-timeout", "1", check=False) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = _clients(pool, server, 12_000)

        server.send_signal(signal.SIGTERM)

        assert all(future.result(timeout=60) != FINISHED for future in waiting)
        assert server.wait_exit() == 0


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        # tests/runtime/test_launch.py stops a process for everybody.
        pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.slow),
    ],
)
def test_clients_hear_of_a_dead_scheduler(number: signal.Signals, flags: tuple[str, ...]) -> None:
    with (
        running_server(*flags, exit_code=None, check=False) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = _clients(pool, server, 12_000)

        os.kill(_scheduler(server), number)

        ended = time.monotonic() + NOTICE_S
        for future in waiting:
            assert future.result(timeout=max(ended - time.monotonic(), 0.0)) != FINISHED
        assert server.wait_exit() != 0


def test_nothing_survives_the_process_that_was_started(flags: tuple[str, ...]) -> None:
    with running_server(*flags, exit_code=None, check=False) as server:
        children = server.children()
        assert children

        server.send_signal(signal.SIGKILL)
        server.wait_exit()

        deadline = time.monotonic() + 60.0
        while any(os.path.exists(f"/proc/{pid}") for pid in children):
            assert time.monotonic() < deadline, "a child outlived its parent"
            time.sleep(0.1)
